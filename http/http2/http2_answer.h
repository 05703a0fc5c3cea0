#pragma once

#include <memory>
#include <string>
#include <vector>

#include "http/exchange.h"

namespace penstock {

// What is left to send of an answer's body, whether it was there at once or comes bit by bit. The
// connection's thread.
class Http2Answer {
 public:
  explicit Http2Answer(std::string body)
      : bytes_(std::move(body)), state_(BodySource::State::kEnd) {}
  explicit Http2Answer(std::shared_ptr<BodySource> source) : source_(std::move(source)) {}

  struct Part {
    size_t bytes = 0;
    BodySource::State then = BodySource::State::kMore;  // kMore with no bytes: not now
  };
  // Looks what can be sent now, at most `most` bytes.
  Part Next(size_t max);
  // Sends the first `bytes` of what Next found.
  void AppendTo(std::string& out, size_t bytes);
  // After kEnd; once.
  std::vector<HttpHeader> TakeTrailers();

 private:
  std::shared_ptr<BodySource> source_;
  std::string bytes_;  // pulled, or the whole body
  size_t sent_ = 0;    // of bytes_
  BodySource::State state_ = BodySource::State::kMore;
};

}  // namespace penstock
