#include "router/grpc/frame.h"

#include <algorithm>
#include <cstdint>

namespace penstock {
namespace {

uint8_t ByteAt(std::string_view bytes, size_t i) { return static_cast<uint8_t>(bytes[i]); }

// The size of the message behind the complete frame head `head`.
absl::StatusOr<size_t> SizeIn(std::string_view head, size_t max) {
  const uint8_t flags = ByteAt(head, 0);
  if (flags == 1) {
    return absl::UnimplementedError(
        "the message is compressed, which is not supported here: send it as it is");
  }
  if (flags != 0) {
    return Internal("a message begins with the byte {}: 0 is expected, or 1 for a compressed one",
                    flags);
  }
  size_t size = 0;
  for (size_t i = 1; i < kFrameHeadBytes; ++i) size = size << 8 | ByteAt(head, i);
  if (size <= max) return size;
  return ResourceExhausted("the message has {} bytes, which is larger than the {} it may have",
                           size, max);
}

absl::Status BreaksOff(size_t size, size_t wanted) {
  return Internal("the request breaks off within a message, after {} of {} bytes", size, wanted);
}

}  // namespace

void AppendFrame(const google::protobuf::MessageLite& message, std::string& out) {
  const size_t begin = out.size();
  out.append(kFrameHeadBytes, '\0');
  message.AppendToString(&out);
  const size_t size = out.size() - begin - kFrameHeadBytes;
  for (size_t i = 1; i < kFrameHeadBytes; ++i) {
    out[begin + i] = static_cast<char>(size >> 8 * (kFrameHeadBytes - 1 - i));
  }
}

absl::StatusOr<std::string_view> OnlyMessage(std::string_view body, size_t max) {
  if (body.empty()) return absl::UnimplementedError("the method takes a message; there is none");
  if (body.size() < kFrameHeadBytes) return BreaksOff(body.size(), kFrameHeadBytes);
  ASSIGN_OR_RETURN(const size_t size, SizeIn(body.substr(0, kFrameHeadBytes), max));
  const std::string_view message = body.substr(kFrameHeadBytes);
  if (message.size() < size) return BreaksOff(message.size(), size);
  if (message.size() > size) {
    return absl::UnimplementedError("the method takes one message; more follows after the first");
  }
  return message;
}

absl::Status Deframer::Take(std::string_view bytes,
                            const std::function<absl::Status(std::string_view)>& each) {
  while (true) {
    const size_t taken = std::min(wanted() - held_.size(), bytes.size());
    held_.append(bytes.substr(0, taken));
    bytes.remove_prefix(taken);
    if (held_.size() < wanted()) return absl::OkStatus();
    if (!size_) {
      ASSIGN_OR_RETURN(size_, SizeIn(held_, max_));
      continue;
    }
    RETURN_IF_ERROR(each(std::string_view(held_).substr(kFrameHeadBytes)));
    held_.clear();
    size_.reset();
  }
}

absl::Status Deframer::End() const {
  return held_.empty() ? absl::OkStatus() : BreaksOff(held_.size(), wanted());
}

}  // namespace penstock
