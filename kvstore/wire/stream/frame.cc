#include "kvstore/wire/stream/frame.h"

#include <bit>
#include <cstring>

#include "kvstore/wire/wire.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little, "(frames are copied as they lie)");

absl::Status CheckMessage(const StreamFrame& frame) {
  const bool eager = frame.value <= WireLink::kEagerMax;
  const uint64_t body = frame.header_bytes + (eager ? frame.value : 0);
  if (frame.value > kWirePayloadMax || frame.header_bytes > WireLink::kHeaderMax ||
      frame.body_bytes != body) {
    return DataLoss("wire frame: a message of {} bytes with a header of {} and a body of {}",
                    frame.value, frame.header_bytes, frame.body_bytes);
  }
  return absl::OkStatus();
}

absl::Status CheckPart(const StreamFrame& frame) {
  if (frame.value >= kWirePayloadMax || frame.value % kStreamPartBytes != 0 ||
      frame.body_bytes == 0 || frame.body_bytes > kStreamPartBytes || frame.header_bytes != 0) {
    return DataLoss("wire frame: a part of {} bytes at offset {}", frame.body_bytes, frame.value);
  }
  return absl::OkStatus();
}

absl::Status CheckAnswer(const StreamFrame& frame) {
  if (frame.body_bytes != 0 || frame.header_bytes != 0 || frame.value != 0) {
    return DataLoss("wire frame: an answer with a body of {} bytes", frame.body_bytes);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StreamFrame> ParseStreamFrame(std::span<const std::byte> bytes) {
  StreamFrame frame;
  if (bytes.size() != sizeof(frame)) {
    return DataLoss("wire frame: {} bytes, must be {}", bytes.size(), sizeof(frame));
  }
  std::memcpy(&frame, bytes.data(), sizeof(frame));
  if (frame.magic != StreamFrame::kMagic || frame.id == 0) {
    return DataLoss("wire frame: magic {:#x}, id {}", frame.magic, frame.id);
  }
  absl::Status status;
  switch (frame.kind) {
    case StreamFrame::Kind::kMessage:
      status = CheckMessage(frame);
      break;
    case StreamFrame::Kind::kPart:
      status = CheckPart(frame);
      break;
    case StreamFrame::Kind::kWanted:
    case StreamFrame::Kind::kRefused:
      status = CheckAnswer(frame);
      break;
    default:
      status = DataLoss("wire frame: kind {}", static_cast<uint32_t>(frame.kind));
  }
  RETURN_IF_ERROR(status);
  return frame;
}

std::span<const std::byte> BytesOf(const StreamFrame& frame) {
  return std::as_bytes(std::span(&frame, 1));
}

}  // namespace penstock
