#include "http/http_message.h"

#include <fmt/format.h>

#include <algorithm>

namespace penstock {

const std::string* HttpHead::Find(std::string_view name) const {
  const auto found = std::find_if(headers.begin(), headers.end(),
                                  [&](const HttpHeader& header) { return header.name == name; });
  return found == headers.end() ? nullptr : &found->value;
}

TraceContext TraceOf(const HttpHead& head) {
  return ParseTrace({.parents = head.All("traceparent"), .states = head.All("tracestate")});
}

std::optional<HttpError> ReadTarget(std::string_view target, const HttpLimits& limits,
                                    HttpHead& head) {
  if (target.size() > limits.target_bytes) {
    return HttpError{414, fmt::format("the request's target has {} bytes; the limit is {}",
                                      target.size(), limits.target_bytes)};
  }
  for (const std::string_view scheme : {"http://", "https://"}) {
    // The absolute form, as proxies receive it (RFC 9112, section 3.2.2).
    if (!target.starts_with(scheme)) continue;
    const size_t slash = target.find('/', scheme.size());
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  const bool printable =
      std::all_of(target.begin(), target.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (!printable || !target.starts_with('/')) {
    return HttpError{400,
                     "the request's target must be a path that starts with / and is plain ASCII"};
  }
  const size_t question = target.find('?');
  head.path = target.substr(0, question);
  head.query = question == std::string_view::npos ? "" : target.substr(question + 1);
  return std::nullopt;
}

HttpError TooManyHeaders(const HttpLimits& limits) {
  return {431, fmt::format("the request has more than {} headers", limits.headers)};
}

HttpError HeadTooLarge(const HttpLimits& limits) {
  return {431,
          fmt::format("the request's headers have more than {} bytes together", limits.head_bytes)};
}

HttpError BodyTooLarge(const HttpLimits& limits) {
  return {413, fmt::format("the request's body has more than {} bytes, which is the limit",
                           limits.body_bytes)};
}

HttpError BodyTooLarge(size_t bytes, const HttpLimits& limits) {
  return {413, fmt::format("the request's body has {} bytes; the limit is {}", bytes,
                           limits.body_bytes)};
}

std::string LastResponseText(const HttpResponse& response) {
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, ReasonPhrase(response.status));
  for (const HttpHeader& header : response.headers) {
    text += fmt::format("{}: {}\r\n", header.name, header.value);
  }
  return text + fmt::format("connection: close\r\ncontent-length: {}\r\n\r\n{}",
                            response.body.size(), response.body);
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string_view TrimSpace(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string_view> HttpHead::All(std::string_view name) const {
  std::vector<std::string_view> values;
  for (const HttpHeader& header : headers) {
    if (header.name == name) values.push_back(header.value);
  }
  return values;
}

std::string_view ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

}  // namespace penstock
