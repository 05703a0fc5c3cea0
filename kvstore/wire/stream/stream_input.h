#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kvstore/wire/stream/frame.h"
#include "kvstore/wire/stream/frame_seal.h"

namespace penstock {

// Takes the frames of a link apart as bytes arrive. The bodies of parts are received directly into
// their targets. Bytes that no frame may have are an error before the next byte is read. On the
// loop's thread.
class StreamInput {
 public:
  struct Events {
    // Returns where the body of a part goes, for as many bytes as the frame says. An error refuses
    // the frame. On a sealed link the frame's header has not been checked at this point: it may
    // choose only among targets that are being received.
    std::function<absl::StatusOr<std::byte*>(const StreamFrame& part)> target_of;
    // A whole frame, whose seal was right. The body of a part lies at its target.
    std::function<absl::Status(const StreamFrame& frame, std::span<const std::byte> body)> on_frame;
  };

  // Plain with an empty `secret`.
  StreamInput(const std::string& secret, StreamDirection direction, Events events);

  // Where the next bytes go: the rest of a body, and what follows it. At least one byte.
  std::array<iovec, 2> Room();
  // The first `bytes` of the room were filled. DATA_LOSS or on_frame's error: the link must be cut.
  absl::Status Filled(size_t bytes);

 private:
  size_t tag_bytes() const { return seal_ ? kSealTagBytes : 0; }
  size_t margin_bytes() const { return tag_bytes() + kStreamFrameBytes; }
  absl::Status BeginFrame();
  absl::Status EndFrame();

  const Events events_;
  std::optional<FrameSeal> seal_;
  std::optional<StreamFrame> frame_;                 // whose body or tag is being received
  std::array<std::byte, kStreamFrameBytes> head_{};  // of frame_, as received
  std::vector<std::byte> small_body_;
  std::span<std::byte> body_;
  size_t body_filled_ = 0;
  // The tag of one frame and the header of the next, which one system call receives together with
  // the body before them.
  std::array<std::byte, kSealTagBytes + kStreamFrameBytes> margin_{};
  size_t margin_filled_;
};

}  // namespace penstock
