#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "http/http_message.h"

namespace penstock {

// Builds a request's head from HTTP/2's header fields (RFC 9113, section 8.3), as HTTP/1.1 would
// have sent it: ":authority" becomes "host". nghttp2 has already refused malformed fields; this
// class applies our limits, and checks fields that can state the same fact twice. Memory is bounded
// by the limits. One thread at a time.
class Http2Head {
 public:
  explicit Http2Head(const HttpLimits& limits) : limits_(limits) {}

  void Add(std::string_view name, std::string_view value);
  // Call it after the last field; returns the first error, if any.
  std::optional<HttpError> Finish();

  HttpHead Take() { return std::move(head_); }
  // The size as SETTINGS_MAX_HEADER_LIST_SIZE defines it (RFC 9113, section 6.5.2).
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
