#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/trace_context.h"

namespace penstock {

struct HttpHeader {
  std::string name;  // in lower case
  std::string value;
};

// What a request starts with.
struct HttpHead {
  std::string method;
  std::string path;   // as sent, without the query
  std::string query;  // without the '?'
  std::vector<HttpHeader> headers;

  // The first header of that name, in lower case; null where there is none.
  const std::string* Find(std::string_view name) const;
  // The values of all of that name, in order. Views of them.
  std::vector<std::string_view> All(std::string_view name) const;
};

// What a caller says of its trace; no trace_id where that is nothing.
TraceContext TraceOf(const HttpHead& head);

struct HttpRequest {
  HttpHead head;
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::vector<HttpHeader> headers;  // content-length and connection are added
  std::string body;
};

struct HttpLimits {
  size_t head_bytes = 16 << 10;   // request line and headers together
  size_t target_bytes = 4 << 10;  // of the request line's target
  size_t headers = 100;
  size_t body_bytes = 4 << 20;
};

struct HttpError {
  int status = 0;
  std::string message;  // says what is wrong and what the limit is
};

// Sets the path and the query from a request's target, or says what is wrong with it.
std::optional<HttpError> ReadTarget(std::string_view target, const HttpLimits& limits,
                                    HttpHead& head);
HttpError TooManyHeaders(const HttpLimits& limits);
HttpError HeadTooLarge(const HttpLimits& limits);
HttpError BodyTooLarge(const HttpLimits& limits);  // of unknown size
HttpError BodyTooLarge(size_t bytes, const HttpLimits& limits);

// All of a response in HTTP/1.1, after which the connection is closed.
std::string LastResponseText(const HttpResponse& response);

std::string LowerCase(std::string_view text);  // of ASCII letters
// Without the spaces and tabs around it (RFC 9110, 5.6.3).
std::string_view TrimSpace(std::string_view text);

// "Not Found" for 404.
std::string_view ReasonPhrase(int status);

}  // namespace penstock
