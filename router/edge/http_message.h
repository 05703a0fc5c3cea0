#pragma once

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

std::string LowerCase(std::string_view text);  // of ASCII letters
// Without the spaces and tabs around it (RFC 9110, 5.6.3).
std::string_view TrimSpace(std::string_view text);

// "Not Found" for 404.
std::string_view ReasonPhrase(int status);

}  // namespace penstock
