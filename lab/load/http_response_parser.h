#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "http/http_message.h"

namespace penstock {

// One response of an HTTP/1.1 server, from bytes that come in any pieces. What it holds is bounded;
// the body goes on as it comes. One thread.
class HttpResponseParser {
 public:
  using OnBody = std::function<void(std::string_view)>;
  static constexpr size_t kMaxHeadBytes = 64 << 10;  // all header and framing lines together

  explicit HttpResponseParser(OnBody on_body) : on_body_(std::move(on_body)) {}

  // Takes up to the end of the response, and says how many bytes that was.
  size_t Take(std::string_view bytes);
  // The connection has ended: some bodies end so, others are broken.
  void TakeEnd();

  bool head_done() const { return state_ != State::kStatus && state_ != State::kHeaders; }
  bool done() const { return state_ == State::kDone; }
  bool failed() const { return state_ == State::kFailed; }
  const std::string& error() const { return error_; }

  int status() const { return status_; }
  // The header of that name, in lower case; null where there is none.
  const std::string* Find(std::string_view name) const { return head_.Find(name); }
  // Whether another request may follow on the connection.
  bool keep_alive() const { return keep_alive_; }

 private:
  enum class State {
    kStatus,
    kHeaders,
    kSized,
    kToEnd,
    kChunkSize,
    kChunk,
    kChunkEnd,
    kTrailers,
    kDone,
    kFailed
  };

  bool TakesLines() const;
  size_t TakeData(std::string_view bytes);
  void TakeLine(std::string_view line);
  void TakeStatus(std::string_view line);
  void TakeHeader(std::string_view line);
  void TakeChunkSize(std::string_view line);
  void BeginBody();
  void Fail(std::string error);

  const OnBody on_body_;
  State state_ = State::kStatus;
  HttpHead head_;
  std::string line_;  // so far
  std::string error_;
  size_t lines_bytes_ = 0;
  uint64_t left_ = 0;  // of the body, or of a chunk
  int status_ = 0;
  bool keep_alive_ = true;
};

}  // namespace penstock
