#include "http/http2/http2_head.h"

#include <charconv>

namespace penstock {
namespace {

// Counted for each field beside its text (RFC 9113, section 6.5.2).
constexpr size_t kFieldBytes = 32;

}  // namespace

void Http2Head::Add(std::string_view name, std::string_view value) {
  bytes_ += name.size() + value.size() + kFieldBytes;
  if (wrong_) return;
  if (bytes_ > limits_.head_bytes) {
    wrong_ = HeadTooLarge(limits_);
  } else if (name == ":method") {
    head_.method = value;
  } else if (name == ":path") {
    target_ = value;
  } else if (name == ":authority") {
    authority_ = value;
  } else if (name.starts_with(':')) {
    return;  // ":scheme" is ignored
  } else if (head_.headers.size() >= limits_.headers) {
    wrong_ = TooManyHeaders(limits_);
  } else {
    head_.headers.push_back({std::string(name), std::string(value)});
  }
}

std::optional<HttpError> Http2Head::Finish() {
  if (!wrong_) wrong_ = ReadTarget(target_, limits_, head_);
  if (!wrong_) wrong_ = ReadAuthority();
  if (!wrong_) wrong_ = ReadLength();
  if (!wrong_) wrong_ = ReadExpectation();
  return wrong_;
}

std::optional<HttpError> Http2Head::ReadAuthority() {
  const std::string* host = head_.Find("host");
  if (host == nullptr && authority_.empty()) {
    return HttpError{400, "the request must have an :authority or a host"};
  }
  if (host == nullptr) {
    head_.headers.push_back({"host", authority_});
  } else if (!authority_.empty() && LowerCase(*host) != LowerCase(authority_)) {
    return HttpError{400, "the request's host and :authority are different"};
  }
  return std::nullopt;
}

std::optional<HttpError> Http2Head::ReadLength() {
  const std::string* text = head_.Find("content-length");
  if (text == nullptr) return std::nullopt;
  size_t length = 0;
  std::from_chars(text->data(), text->data() + text->size(), length);
  if (length > limits_.body_bytes) return BodyTooLarge(length, limits_);
  return std::nullopt;
}

std::optional<HttpError> Http2Head::ReadExpectation() {
  const std::string* expectation = head_.Find("expect");
  if (expectation == nullptr) return std::nullopt;
  expects_continue_ = LowerCase(*expectation) == "100-continue";
  if (expects_continue_) return std::nullopt;
  return HttpError{417, "the Expect header is not supported, except 100-continue"};
}

}  // namespace penstock
