#pragma once

#include <google/protobuf/message_lite.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// A message on a gRPC stream: a byte that says whether it is compressed, four of its length, most
// significant first, and the message.
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
inline constexpr size_t kFrameHeadBytes = 5;
inline constexpr size_t kGrpcMessageBytesMax = 4 << 20;  // of a request's message

void AppendFrame(const google::protobuf::MessageLite& message, std::string& out);

// The message of a request to a method that takes one: a view of `body`. UNIMPLEMENTED where it is
// compressed or is not one, RESOURCE_EXHAUSTED where it has more than `most` bytes, INTERNAL where
// it breaks off.
absl::StatusOr<std::string_view> OnlyMessage(std::string_view body, size_t max);

// The messages of a stream whose bytes come in any pieces. Holds at most one of them. One thread at
// a time; takes nothing more after an error.
class Deframer {
 public:
  explicit Deframer(size_t max) : max_(max) {}

  // Calls `each` with every message that is complete now. Its errors are returned, and those of
  // OnlyMessage.
  absl::Status Take(std::string_view bytes,
                    const std::function<absl::Status(std::string_view message)>& each);
  // The stream is over. INTERNAL within a message.
  absl::Status End() const;

 private:
  size_t wanted() const { return kFrameHeadBytes + size_.value_or(0); }

  const size_t max_;
  std::string held_;            // of the message that comes, with its head
  std::optional<size_t> size_;  // of that message, once its head is there
};

}  // namespace penstock
