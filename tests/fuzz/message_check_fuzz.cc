// Requests as bytes: whatever the check accepts, protobuf must accept too.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "proto/inference.pb.h"
#include "router/request/message_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  penstock::v1::GenerateRequest request;
  const absl::Status status =
      penstock::CheckEncoding(bytes, *penstock::v1::GenerateRequest::descriptor());
  const bool parsed = status.ok() && request.ParseFromArray(data, static_cast<int>(size));
  if (parsed) PENSTOCK_CHECK(request.SerializeAsString().size() <= size * 4 + 64);
  return 0;
}
