#include "kvstore/wire/stream/stream_input.h"

#include <algorithm>
#include <utility>

namespace penstock {

StreamInput::StreamInput(const std::string& secret, StreamDirection direction, Events events)
    : events_(std::move(events)) {
  if (!secret.empty()) seal_.emplace(secret, direction);
  margin_filled_ = tag_bytes();  // There is no frame before the first.
}

std::array<iovec, 2> StreamInput::Room() {
  return {iovec{.iov_base = body_.data() + body_filled_, .iov_len = body_.size() - body_filled_},
          iovec{.iov_base = margin_.data() + margin_filled_,
                .iov_len = margin_bytes() - margin_filled_}};
}

absl::Status StreamInput::Filled(size_t bytes) {
  const size_t of_body = std::min(bytes, body_.size() - body_filled_);
  body_filled_ += of_body;
  margin_filled_ += bytes - of_body;
  if (frame_ && body_filled_ == body_.size() && margin_filled_ >= tag_bytes()) {
    RETURN_IF_ERROR(EndFrame());
  }
  return margin_filled_ == margin_bytes() ? BeginFrame() : absl::OkStatus();
}

absl::Status StreamInput::BeginFrame() {
  std::copy_n(margin_.begin() + static_cast<ptrdiff_t>(tag_bytes()), head_.size(), head_.begin());
  margin_filled_ = 0;
  body_filled_ = 0;
  ASSIGN_OR_RETURN(frame_, ParseStreamFrame(head_));
  if (frame_->kind == StreamFrame::Kind::kPart) {
    ASSIGN_OR_RETURN(std::byte* const target, events_.target_of(*frame_));
    body_ = {target, frame_->body_bytes};
  } else {
    small_body_.resize(frame_->body_bytes);
    body_ = small_body_;
  }
  return body_.empty() && tag_bytes() == 0 ? EndFrame() : absl::OkStatus();
}

absl::Status StreamInput::EndFrame() {
  if (seal_) {
    RETURN_IF_ERROR(seal_->Open(head_, body_, std::span(margin_).first<kSealTagBytes>()));
  }
  const StreamFrame frame = *frame_;
  const std::span<std::byte> body = body_;
  frame_.reset();
  body_ = {};
  body_filled_ = 0;
  return events_.on_frame(frame, body);
}

}  // namespace penstock
