#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "http/http_message.h"

namespace penstock {

// A request's head from HTTP/2's header fields (RFC 9113, 8.3), as HTTP/1.1 would have given it:
// ":authority" is "host". nghttp2 has refused what is malformed by then; here are our limits, and
// what may be said in two ways. Memory is bounded by the limits. One thread at a time.
class Http2Head {
 public:
  explicit Http2Head(const HttpLimits& limits) : limits_(limits) {}

  void Add(std::string_view name, std::string_view value);
  // After the last field: what is wrong with them.
  std::optional<HttpError> Finish();

  HttpHead Take() { return std::move(head_); }
  // As SETTINGS_MAX_HEADER_LIST_SIZE counts.
  size_t bytes() const { return bytes_; }
  bool expects_continue() const { return expects_continue_; }

 private:
  std::optional<HttpError> ReadAuthority();
  std::optional<HttpError> ReadLength();
  std::optional<HttpError> ReadExpectation();

  const HttpLimits& limits_;
  HttpHead head_;
  std::string target_;
  std::string authority_;
  std::optional<HttpError> wrong_;
  size_t bytes_ = 0;
  bool expects_continue_ = false;
};

}  // namespace penstock
