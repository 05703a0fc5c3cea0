#include "http/http2/http2_answer.h"

#include <algorithm>

namespace penstock {

Http2Answer::Part Http2Answer::Next(size_t max) {
  if (sent_ == bytes_.size() && state_ == BodySource::State::kMore) {
    bytes_.clear();
    sent_ = 0;
    state_ = source_->Pull(bytes_, max);
  }
  const size_t left = bytes_.size() - sent_;
  if (left > max) return {.bytes = max};
  // The bytes before the break are sent first.
  if (left > 0 && state_ == BodySource::State::kBroken) return {.bytes = left};
  return {.bytes = left, .then = state_};
}

void Http2Answer::AppendTo(std::string& out, size_t bytes) {
  out.append(bytes_, sent_, bytes);
  sent_ += bytes;
}

std::vector<HttpHeader> Http2Answer::TakeTrailers() {
  return source_ == nullptr ? std::vector<HttpHeader>() : source_->Trailers();
}

}  // namespace penstock
