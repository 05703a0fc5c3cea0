#pragma once

#include <memory>
#include <string>
#include <vector>

#include "http/exchange.h"

namespace penstock {

// The unsent part of an answer's body, complete from the start or produced over time. Used on the
// connection's thread.
class Http2Answer {
 public:
  explicit Http2Answer(std::string body)
      : bytes_(std::move(body)), state_(BodySource::State::kEnd) {}
  explicit Http2Answer(std::shared_ptr<BodySource> source) : source_(std::move(source)) {}

  struct Part {
    size_t bytes = 0;
    BodySource::State then = BodySource::State::kMore;  // kMore with 0 bytes: nothing now
  };
  // Returns the size of the part that can be sent now, at most `max` bytes.
  Part Next(size_t max);
  // Appends the first `bytes` of the part that Next returned.
  void AppendTo(std::string& out, size_t bytes);
  // Returns the trailers; call it once, after kEnd.
  std::vector<HttpHeader> TakeTrailers();

 private:
  std::shared_ptr<BodySource> source_;
  std::string bytes_;  // pulled, or the whole body
  size_t sent_ = 0;    // of bytes_
  BodySource::State state_ = BodySource::State::kMore;
};

}  // namespace penstock
