#pragma once

#include <google/protobuf/message_lite.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// The framing of messages on a gRPC stream: 1 byte of flags (1: compressed), 4 bytes of length, big
// endian, then the message.
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
inline constexpr size_t kFrameHeadBytes = 5;
inline constexpr size_t kGrpcMessageBytesMax = 4 << 20;  // limit of a request's message

void AppendFrame(const google::protobuf::MessageLite& message, std::string& out);

// The only message of a unary request, as a view of `body`. UNIMPLEMENTED when it is compressed or
// there is not exactly one, RESOURCE_EXHAUSTED when it has more than `max` bytes, INTERNAL when it
// is truncated.
absl::StatusOr<std::string_view> OnlyMessage(std::string_view body, size_t max);

// Splits a stream of bytes into messages. The bytes may arrive in any pieces; at most one message
// is buffered. Not to be used after an error. One thread at a time.
class Deframer {
 public:
  explicit Deframer(size_t max) : max_(max) {}

  // Adds bytes and calls `each` with every message that is complete now. Returns the first error of
  // `each`, or an error of OnlyMessage.
  absl::Status Take(std::string_view bytes,
                    const std::function<absl::Status(std::string_view message)>& each);
  // The stream has ended. INTERNAL when the last message is truncated.
  absl::Status End() const;

 private:
  size_t wanted() const { return kFrameHeadBytes + size_.value_or(0); }

  const size_t max_;
  std::string held_;            // the incomplete message, with its 5-byte head
  std::optional<size_t> size_;  // the incomplete message's size, once its head is complete
};

}  // namespace penstock
