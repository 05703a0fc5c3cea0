#include "tests/router/grpc/read_answer.h"

#include "base/check.h"
#include "router/grpc/frame.h"

namespace penstock {
namespace {

std::string PercentDecode(const std::string& text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    decoded += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
    i += 2;
  }
  return decoded;
}

std::string Base64Decode(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string decoded;
  uint32_t word = 0;
  int bits = 0;
  for (const char digit : text) {
    word = word << 6 | static_cast<uint32_t>(digits.find(digit));
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    decoded += static_cast<char>(word >> bits);
  }
  return decoded;
}

}  // namespace

std::string Framed(const std::string& message, char flags) {
  std::string framed(1, flags);
  for (int shift = 24; shift >= 0; shift -= 8) {
    framed += static_cast<char>(message.size() >> shift);
  }
  return framed + message;
}

TestExchange::TestExchange()
    : wakes_(std::make_shared<std::atomic<int>>(0)),
      exchange_(std::make_shared<Exchange>([wakes = wakes_] { ++*wakes; })) {}

bool TestExchange::answered() {
  if (answered_) return true;
  std::optional<Exchange::Answer> answer = exchange_->TakeAnswer();
  if (!answer) return false;
  answered_ = true;
  head_ = std::move(answer->head);
  source_ = std::move(answer->source);
  ended_ = source_ == nullptr;
  return true;
}

std::vector<std::string> TestExchange::ReadMessages(size_t max) {
  std::vector<std::string> messages;
  if (!answered() || ended_) return messages;
  std::string bytes;
  while (!ended_) {
    const size_t before = bytes.size();
    std::string piece;
    ended_ = source_->Pull(piece, max) == BodySource::State::kEnd;
    bytes += piece;
    if (bytes.size() == before) break;
  }
  if (ended_) trailers_ = source_->Trailers();
  Deframer deframer(1 << 30);
  const absl::Status status = deframer.Take(bytes, [&](std::string_view message) {
    messages.emplace_back(message);
    return absl::OkStatus();
  });
  PENSTOCK_CHECK(status.ok(), "an answer is not framed");
  PENSTOCK_CHECK(deframer.End().ok(), "an answer ends within a message");
  return messages;
}

absl::Status TestExchange::status() const {
  const std::string code = Trailer("grpc-status");
  return absl::Status(static_cast<absl::StatusCode>(std::stoi(code.empty() ? "2" : code)),
                      PercentDecode(Trailer("grpc-message")));
}

std::string TestExchange::Trailer(const std::string& name) const {
  for (const HttpHeader& header : trailers_only() ? head_.headers : trailers_) {
    if (header.name != name) continue;
    return name.ends_with("-bin") ? Base64Decode(header.value) : header.value;
  }
  return "";
}

}  // namespace penstock
