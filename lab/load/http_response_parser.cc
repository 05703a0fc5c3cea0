#include "lab/load/http_response_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace penstock {
namespace {

// The whole of `text` as a number; false where it is none.
bool Parse(std::string_view text, int base, uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

}  // namespace

bool HttpResponseParser::TakesLines() const {
  return !head_done() || state_ == State::kChunkSize || state_ == State::kChunkEnd ||
         state_ == State::kTrailers;
}

size_t HttpResponseParser::Take(std::string_view bytes) {
  const size_t all = bytes.size();
  while (!bytes.empty() && !done() && !failed()) {
    if (!TakesLines()) {
      bytes.remove_prefix(TakeData(bytes));
      continue;
    }
    const size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    lines_bytes_ += part.size() + 1;
    if (lines_bytes_ > kMaxHeadBytes) {
      Fail(fmt::format("headers and framing of more than {} bytes", kMaxHeadBytes));
      break;
    }
    line_ += part;
    if (end == std::string_view::npos) return all;
    bytes.remove_prefix(end + 1);
    if (line_.ends_with('\r')) line_.pop_back();
    const std::string line = std::move(line_);
    line_.clear();
    TakeLine(line);
  }
  return all - bytes.size();
}

void HttpResponseParser::TakeEnd() {
  if (done() || failed()) return;
  if (state_ == State::kToEnd) {
    state_ = State::kDone;
    return;
  }
  Fail(head_done() ? "the connection ended within the response"
                   : "the connection ended before a response");
}

size_t HttpResponseParser::TakeData(std::string_view bytes) {
  if (state_ == State::kToEnd) {
    on_body_(bytes);
    return bytes.size();
  }
  const auto count = static_cast<size_t>(std::min<uint64_t>(left_, bytes.size()));
  left_ -= count;
  on_body_(bytes.substr(0, count));
  if (left_ == 0) state_ = state_ == State::kChunk ? State::kChunkEnd : State::kDone;
  return count;
}

void HttpResponseParser::TakeLine(std::string_view line) {
  switch (state_) {
    case State::kStatus:
      return TakeStatus(line);
    case State::kHeaders:
      return line.empty() ? BeginBody() : TakeHeader(line);
    case State::kChunkSize:
      return TakeChunkSize(line);
    case State::kChunkEnd:
      if (!line.empty()) return Fail("a chunk is longer than it says");
      lines_bytes_ = 0;  // A stream has any number of chunks; each is bounded.
      state_ = State::kChunkSize;
      return;
    case State::kTrailers:
      if (line.empty()) state_ = State::kDone;
      return;
    default:
      return;
  }
}

void HttpResponseParser::TakeStatus(std::string_view line) {
  uint64_t code = 0;
  if (!line.starts_with("HTTP/1.") || line.size() < 12 || line[8] != ' ' ||
      !Parse(line.substr(9, 3), 10, code) || code < 100 || (line.size() > 12 && line[12] != ' ')) {
    return Fail("the first line is no HTTP/1.1 status");
  }
  status_ = static_cast<int>(code);
  keep_alive_ = line[7] == '1';
  state_ = State::kHeaders;
}

void HttpResponseParser::TakeHeader(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0) return Fail("a header line has no name");
  head_.headers.push_back({.name = LowerCase(line.substr(0, colon)),
                           .value = std::string(TrimSpace(line.substr(colon + 1)))});
}

void HttpResponseParser::BeginBody() {
  if (status_ < 200) {  // "100 Continue" and the like come before the response
    head_.headers.clear();
    state_ = State::kStatus;
    return;
  }
  if (const std::string* connection = Find("connection")) {
    const std::string wish = LowerCase(*connection);
    if (wish == "close") keep_alive_ = false;
    if (wish == "keep-alive") keep_alive_ = true;
  }
  const std::string* length = Find("content-length");
  const std::string* coding = Find("transfer-encoding");
  lines_bytes_ = 0;
  if (coding != nullptr) {
    if (LowerCase(*coding) != "chunked") return Fail("transfer-encoding is not chunked");
    state_ = State::kChunkSize;
  } else if (length != nullptr) {
    if (!Parse(*length, 10, left_)) return Fail("content-length is no number");
    state_ = left_ == 0 ? State::kDone : State::kSized;
  } else if (status_ == 204 || status_ == 304) {
    state_ = State::kDone;
  } else {
    keep_alive_ = false;
    state_ = State::kToEnd;
  }
}

void HttpResponseParser::TakeChunkSize(std::string_view line) {
  if (!Parse(TrimSpace(line.substr(0, line.find(';'))), 16, left_)) {
    return Fail("a chunk's size is no number");
  }
  state_ = left_ == 0 ? State::kTrailers : State::kChunk;
}

void HttpResponseParser::Fail(std::string error) {
  error_ = std::move(error);
  keep_alive_ = false;
  state_ = State::kFailed;
}

}  // namespace penstock
