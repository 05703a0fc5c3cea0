#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/trace_context.h"

namespace penstock {

// One header field.
struct HttpHeader {
  std::string name;  // in lower case
  std::string value;
};

// The head of a request.
struct HttpHead {
  std::string method;
  std::string path;   // as received, without the query
  std::string query;  // without the '?'
  std::vector<HttpHeader> headers;

  // Returns the first header with that lower-case name, or null.
  const std::string* Find(std::string_view name) const;
  // Returns the values of all headers with that name, in order, as views.
  std::vector<std::string_view> All(std::string_view name) const;
};

// Returns the trace in a request's headers; no trace_id if there is no valid one.
TraceContext TraceOf(const HttpHead& head);

// A complete request.
struct HttpRequest {
  HttpHead head;
  std::string body;
};

// A complete response, or the head of one whose body streams.
struct HttpResponse {
  int status = 200;
  std::vector<HttpHeader> headers;  // content-length and connection are added when sent
  std::string body;
};

// Limits of one request, in bytes unless named otherwise.
struct HttpLimits {
  size_t head_bytes = 16 << 10;   // request line and headers together
  size_t target_bytes = 4 << 10;  // target of the request line
  size_t headers = 100;
  size_t body_bytes = 4 << 20;
};

// The answer to a malformed or too large request.
struct HttpError {
  int status = 0;
  std::string message;  // names the error and the limit
};

// Sets path and query from a request's target, or returns the error in it.
std::optional<HttpError> ReadTarget(std::string_view target, const HttpLimits& limits,
                                    HttpHead& head);
HttpError TooManyHeaders(const HttpLimits& limits);
HttpError HeadTooLarge(const HttpLimits& limits);
HttpError BodyTooLarge(const HttpLimits& limits);  // for a body of unknown size
HttpError BodyTooLarge(size_t bytes, const HttpLimits& limits);

// Formats a whole HTTP/1.1 response, after which the connection is closed.
std::string LastResponseText(const HttpResponse& response);

std::string LowerCase(std::string_view text);  // converts ASCII letters only
// Removes leading and trailing spaces and tabs (RFC 9110, section 5.6.3).
std::string_view TrimSpace(std::string_view text);

// Returns e.g. "Not Found" for 404.
std::string_view ReasonPhrase(int status);

}  // namespace penstock
