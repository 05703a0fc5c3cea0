#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "http/http_message.h"

namespace penstock {

// Parses the requests of one HTTP/1.x connection (RFC 9112), one after the other, from bytes in
// pieces of any size. It is strict where lenient parsers have allowed request smuggling: CRLF only,
// no folded headers, and either one Content-Length or one "Transfer-Encoding: chunked". Memory is
// bounded by the limits. One thread at a time.
class Http1Parser {
 public:
  enum class Event {
    kMore,     // all bytes are taken; more are needed
    kHead,     // head() is complete; the body follows with the next Take
    kRequest,  // head() and body are complete; call Reset() next
    kError,    // error() is the answer; no more bytes are taken
  };

  explicit Http1Parser(const HttpLimits& limits) : limits_(limits) {}

  // Takes bytes from the front of `bytes` up to the next event.
  Event Take(std::string_view& bytes);
  // Prepares for the next request on the connection.
  void Reset();

  const HttpHead& head() const { return head_; }
  HttpRequest TakeRequest();
  const HttpError& error() const { return error_; }

  bool keep_alive() const { return keep_alive_; }
  bool http_1_0() const { return http_1_0_; }
  bool expects_continue() const { return expects_continue_; }
  bool started() const { return state_ != State::kHead || !text_.empty(); }
  // The size of the body received so far.
  size_t body_bytes_so_far() const { return body_.size(); }
  size_t content_length() const { return content_length_; }

 private:
  enum class State { kHead, kBody, kChunkSize, kChunkData, kChunkEnd, kTrailers, kDone, kFailed };

  Event TakeHead(std::string_view& bytes);
  Event TakeBody(std::string_view& bytes);
  Event TakeChunkSize(std::string_view& bytes);
  Event TakeChunkData(std::string_view& bytes);
  Event TakeTrailers(std::string_view& bytes);
  // Appends a line without its CRLF to text_; returns false until the line is complete.
  bool TakeLine(std::string_view& bytes);
  Event Fail(int status, std::string message);
  Event Fail(HttpError error);
  bool ParseHead(std::string_view text);
  bool ParseRequestLine(std::string_view line);
  bool ParseHeader(std::string_view line);
  bool ReadFraming();
  bool ReadContentLength(const std::string& value);
  bool ReadTransferEncoding(const std::string& value);
  void ReadConnection(const std::string& value);

  const HttpLimits limits_;
  State state_ = State::kHead;
  HttpHead head_;
  std::string body_;
  std::string text_;  // the head, or a line of the chunked framing, received so far
  HttpError error_;
  size_t content_length_ = 0;
  size_t chunk_left_ = 0;
  size_t framing_bytes_ = 0;  // bytes of chunk lines and trailers
  bool chunked_ = false;
  bool keep_alive_ = true;
  bool http_1_0_ = false;
  bool expects_continue_ = false;
};

}  // namespace penstock
