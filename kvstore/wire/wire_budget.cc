#include "kvstore/wire/wire_budget.h"

#include "base/check.h"
#include "kvstore/wire/wire.h"

namespace penstock {

absl::Status WireBudget::Take(size_t payload_bytes) {
  MutexLock lock(mutex_);
  if (messages_ >= limits_.messages) {
    return ResourceExhausted(
        "wire: {} messages are pending, the limit is {}; retry when one has ended", messages_,
        limits_.messages);
  }
  if (payload_bytes > limits_.bytes - bytes_) {
    return ResourceExhausted(
        "wire: {} bytes requested, {} bytes are pending, the limit is {}; retry when a message has "
        "ended",
        payload_bytes, bytes_, limits_.bytes);
  }
  ++messages_;
  bytes_ += payload_bytes;
  return absl::OkStatus();
}

void WireBudget::Give(size_t payload_bytes) {
  MutexLock lock(mutex_);
  PENSTOCK_CHECK_GT(messages_, 0u);
  PENSTOCK_CHECK_GE(bytes_, payload_bytes);
  --messages_;
  bytes_ -= payload_bytes;
}

absl::Status CheckPutSizes(size_t header_bytes, size_t payload_bytes) {
  if (header_bytes > kWireHeaderMax) {
    return InvalidArgument("wire: header of {} bytes, the limit is {}", header_bytes,
                           kWireHeaderMax);
  }
  if (payload_bytes > kWirePayloadMax) {
    return InvalidArgument("wire: payload of {} bytes, the limit is {}; split it", payload_bytes,
                           kWirePayloadMax);
  }
  return absl::OkStatus();
}

}  // namespace penstock
