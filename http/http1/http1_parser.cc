#include "http/http1/http1_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace penstock {
namespace {

constexpr size_t kMaxChunkLine = 256;  // size and extensions
constexpr size_t kMaxTrailerBytes = 4 << 10;
constexpr size_t kMaxMethodBytes = 16;
// Limit of a chunked body's framing bytes, beside its data: small bodies in chunks of one byte
// pass, but a megabyte in six megabytes of framing does not.
constexpr size_t kFreeFramingBytes = 64 << 10;

bool IsTokenChar(unsigned char c) {
  if (std::isalnum(c) != 0) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(static_cast<char>(c)) != std::string_view::npos;
}

bool IsToken(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsTokenChar);
}

// Calls `each` with the elements of a comma-separated list, trimmed and in lower case.
template <class Each>
void ForEachPart(std::string_view list, const Each& each) {
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    each(LowerCase(TrimSpace(list.substr(at, comma - at))));
    at = comma + 1;
  }
}

}  // namespace

Http1Parser::Event Http1Parser::Fail(HttpError error) {
  state_ = State::kFailed;
  keep_alive_ = false;
  error_ = std::move(error);
  return Event::kError;
}

Http1Parser::Event Http1Parser::Fail(int status, std::string message) {
  return Fail({status, std::move(message)});
}

void Http1Parser::Reset() {
  state_ = State::kHead;
  head_ = {};
  body_ = {};
  text_ = {};
  content_length_ = chunk_left_ = framing_bytes_ = 0;
  chunked_ = http_1_0_ = expects_continue_ = false;
  keep_alive_ = true;
}

HttpRequest Http1Parser::TakeRequest() { return {std::move(head_), std::move(body_)}; }

// The parser is a state machine over RFC 9112's message grammar: kHead, then kBody (Content-Length)
// or the chunked coding of section 7.1 (kChunkSize, kChunkData, kChunkEnd, kTrailers), then kDone.
// Every state keeps its partial input in text_ or body_, so that bytes may arrive in any pieces.
Http1Parser::Event Http1Parser::Take(std::string_view& bytes) {
  while (true) {
    Event event = Event::kMore;
    switch (state_) {
      case State::kHead:
        return TakeHead(bytes);
      case State::kBody:
        return TakeBody(bytes);
      case State::kChunkSize:
        event = TakeChunkSize(bytes);
        break;
      case State::kChunkData:
      case State::kChunkEnd:
        event = TakeChunkData(bytes);
        break;
      case State::kTrailers:
        return TakeTrailers(bytes);
      case State::kDone:
        return Event::kRequest;
      case State::kFailed:
        return Event::kError;
    }
    if (event != Event::kMore || bytes.empty()) return event;
  }
}

// ---------------------------------------------------------------- head

Http1Parser::Event Http1Parser::TakeHead(std::string_view& bytes) {
  // A client may send an empty line after the previous body (RFC 9112, section 2.2).
  if (text_ == "\r" && bytes.starts_with('\n')) {
    text_.clear();
    bytes.remove_prefix(1);
  }
  while (text_.empty() && bytes.starts_with("\r\n")) bytes.remove_prefix(2);
  const size_t searched = text_.size() < 3 ? 0 : text_.size() - 3;
  const size_t room = limits_.head_bytes - text_.size();
  const size_t taken = std::min(room, bytes.size());
  const size_t before = text_.size();
  text_.append(bytes.substr(0, taken));
  const size_t end = text_.find("\r\n\r\n", searched);
  if (end == std::string::npos) {
    bytes.remove_prefix(taken);
    if (text_.size() < limits_.head_bytes) return Event::kMore;
    if (text_.find("\r\n") == std::string::npos) {
      return Fail(414, fmt::format("the request line has more than {} bytes", limits_.head_bytes));
    }
    return Fail(HeadTooLarge(limits_));
  }
  bytes.remove_prefix(end + 4 - before);
  text_.resize(end + 2);
  if (!ParseHead(text_) || !ReadFraming()) return Event::kError;
  text_ = {};
  if (chunked_) {
    state_ = State::kChunkSize;
  } else {
    state_ = content_length_ > 0 ? State::kBody : State::kDone;
  }
  return Event::kHead;
}

bool Http1Parser::ParseHead(std::string_view text) {
  bool first = true;
  while (!text.empty()) {
    const size_t end = text.find("\r\n");
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 2);
    const bool good = first ? ParseRequestLine(line) : ParseHeader(line);
    if (!good) return false;
    first = false;
  }
  return true;
}

bool Http1Parser::ParseRequestLine(std::string_view line) {
  const size_t method_end = line.find(' ');
  const size_t target_end = line.rfind(' ');
  if (method_end == std::string_view::npos || target_end == method_end) {
    Fail(400, "the request line is not `METHOD TARGET HTTP/1.1`");
    return false;
  }
  const std::string_view method = line.substr(0, method_end);
  const std::string_view target = line.substr(method_end + 1, target_end - method_end - 1);
  const std::string_view version = line.substr(target_end + 1);
  if (!IsToken(method) || method.size() > kMaxMethodBytes) {
    Fail(400, "the request's method is not a token");
    return false;
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    const bool other = version.starts_with("HTTP/") && version.size() == 8;
    Fail(other ? 505 : 400, "the request's version must be HTTP/1.1 or HTTP/1.0");
    return false;
  }
  http_1_0_ = version == "HTTP/1.0";
  keep_alive_ = !http_1_0_;
  head_.method = method;
  std::optional<HttpError> wrong = ReadTarget(target, limits_, head_);
  if (!wrong) return true;
  Fail(*std::move(wrong));
  return false;
}

bool Http1Parser::ParseHeader(std::string_view line) {
  if (head_.headers.size() >= limits_.headers) {
    Fail(TooManyHeaders(limits_));
    return false;
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !IsToken(line.substr(0, colon))) {
    Fail(400, "a header is not `Name: value`");
    return false;
  }
  const std::string_view value = TrimSpace(line.substr(colon + 1));
  const bool clean = std::all_of(value.begin(), value.end(), [](unsigned char c) {
    return (c >= 0x20 && c != 0x7f) || c == '\t';
  });
  if (!clean) {
    Fail(400, "a header's value has a control character");
    return false;
  }
  head_.headers.push_back({LowerCase(line.substr(0, colon)), std::string(value)});
  return true;
}

bool Http1Parser::ReadFraming() {
  size_t hosts = 0;
  size_t lengths = 0;
  size_t encodings = 0;
  for (const HttpHeader& header : head_.headers) {
    bool good = true;
    if (header.name == "host") ++hosts;
    if (header.name == "content-length" && ++lengths == 1) good = ReadContentLength(header.value);
    if (header.name == "transfer-encoding" && ++encodings == 1) {
      good = ReadTransferEncoding(header.value);
    }
    if (header.name == "connection") ReadConnection(header.value);
    if (header.name == "expect") {
      expects_continue_ = LowerCase(header.value) == "100-continue";
      if (!expects_continue_) Fail(417, "the Expect header is not supported, except 100-continue");
      good = expects_continue_;
    }
    if (!good) return false;
  }
  if (hosts > 1 || (hosts == 0 && !http_1_0_)) {
    Fail(400, "the request must have one Host header");
    return false;
  }
  if (lengths + encodings > 1) {
    Fail(400, "the request must have one Content-Length or Transfer-Encoding, not several");
    return false;
  }
  return true;
}

bool Http1Parser::ReadContentLength(const std::string& value) {
  const bool digits =
      !value.empty() && value.size() <= 18 &&
      std::all_of(value.begin(), value.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  if (!digits) {
    Fail(400, "Content-Length is not a number of bytes");
    return false;
  }
  std::from_chars(value.data(), value.data() + value.size(), content_length_);
  if (content_length_ <= limits_.body_bytes) return true;
  Fail(BodyTooLarge(content_length_, limits_));
  return false;
}

bool Http1Parser::ReadTransferEncoding(const std::string& value) {
  if (LowerCase(value) != "chunked" || http_1_0_) {
    Fail(501, "the Transfer-Encoding is not supported; allowed is chunked, in HTTP/1.1");
    return false;
  }
  chunked_ = true;
  return true;
}

void Http1Parser::ReadConnection(const std::string& value) {
  ForEachPart(value, [this](const std::string& part) {
    if (part == "close") keep_alive_ = false;
    if (part == "keep-alive" && http_1_0_) keep_alive_ = true;
  });
}

// ---------------------------------------------------------------- body

Http1Parser::Event Http1Parser::TakeBody(std::string_view& bytes) {
  const size_t taken = std::min(bytes.size(), content_length_ - body_.size());
  body_.append(bytes.substr(0, taken));
  bytes.remove_prefix(taken);
  if (body_.size() < content_length_) return Event::kMore;
  state_ = State::kDone;
  return Event::kRequest;
}

bool Http1Parser::TakeLine(std::string_view& bytes) {
  // The CR may have arrived with the previous piece.
  const size_t newline = bytes.find('\n');
  const size_t taken = newline == std::string_view::npos ? bytes.size() : newline + 1;
  framing_bytes_ += taken;
  text_.append(bytes.substr(0, std::min(taken, kMaxTrailerBytes + 1)));
  bytes.remove_prefix(taken);
  return newline != std::string_view::npos;
}

Http1Parser::Event Http1Parser::TakeChunkSize(std::string_view& bytes) {
  const bool whole = TakeLine(bytes);
  if (text_.size() > kMaxChunkLine || framing_bytes_ > kFreeFramingBytes + 2 * limits_.body_bytes) {
    return Fail(400, "the framing of the chunked body is too large");
  }
  if (!whole) return Event::kMore;
  const size_t digits = std::min(text_.find_first_not_of("0123456789abcdefABCDEF"), text_.size());
  // The size is followed by the end of the line or by extensions, which are ignored (RFC 9112,
  // section 7.1.1).
  const std::string_view rest = std::string_view(text_).substr(digits);
  const bool ends = rest == "\r\n" || (rest.starts_with(';') && rest.ends_with("\r\n"));
  if (digits < 1 || digits > 8 || !ends || rest.find('\r') != rest.size() - 2) {
    return Fail(400, "a chunk does not start with its size in hexadecimal");
  }
  std::from_chars(text_.data(), text_.data() + digits, chunk_left_, 16);
  text_.clear();
  if (chunk_left_ > limits_.body_bytes - body_.size()) {
    return Fail(BodyTooLarge(limits_));
  }
  state_ = chunk_left_ > 0 ? State::kChunkData : State::kTrailers;
  return state_ == State::kTrailers ? TakeTrailers(bytes) : Event::kMore;
}

Http1Parser::Event Http1Parser::TakeChunkData(std::string_view& bytes) {
  if (state_ == State::kChunkData) {
    const size_t taken = std::min(bytes.size(), chunk_left_);
    body_.append(bytes.substr(0, taken));
    bytes.remove_prefix(taken);
    chunk_left_ -= taken;
    if (chunk_left_ > 0) return Event::kMore;
    state_ = State::kChunkEnd;
  }
  while (!bytes.empty() && text_.size() < 2) {
    text_.push_back(bytes.front());
    bytes.remove_prefix(1);
  }
  if (!std::string_view("\r\n").starts_with(text_)) {
    return Fail(400, "a chunk is longer than the size it started with");
  }
  if (text_.size() < 2) return Event::kMore;
  text_.clear();
  state_ = State::kChunkSize;
  return Event::kMore;
}

Http1Parser::Event Http1Parser::TakeTrailers(std::string_view& bytes) {
  while (!bytes.empty()) {
    const bool whole = TakeLine(bytes);
    if (text_.size() > kMaxTrailerBytes) return Fail(431, "the request's trailers are too large");
    if (!whole) return Event::kMore;
    const bool last = text_ == "\r\n";
    if (!text_.ends_with("\r\n")) return Fail(400, "a trailer does not end with CRLF");
    text_.clear();
    if (framing_bytes_ > kFreeFramingBytes + 2 * limits_.body_bytes) {
      return Fail(431, "the request's trailers are too large");
    }
    if (!last) continue;
    state_ = State::kDone;
    return Event::kRequest;
  }
  return Event::kMore;
}

}  // namespace penstock
