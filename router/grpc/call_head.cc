#include "router/grpc/call_head.h"

#include <algorithm>
#include <charconv>
#include <chrono>

namespace penstock {
namespace {

// Longer timeouts are reduced to this, so that adding them to the time cannot overflow.
constexpr std::chrono::hours kTimeoutMax(24 * 365);
constexpr size_t kTimeoutDigits = 8;

HttpResponse Plain(int status, std::string text) {
  return {.status = status,
          .headers = {{"content-type", "text/plain; charset=utf-8"}},
          .body = std::move(text) + "\n"};
}

std::optional<std::chrono::nanoseconds> UnitOf(char letter) {
  switch (letter) {
    case 'H':
      return std::chrono::hours(1);
    case 'M':
      return std::chrono::minutes(1);
    case 'S':
      return std::chrono::seconds(1);
    case 'm':
      return std::chrono::milliseconds(1);
    case 'u':
      return std::chrono::microseconds(1);
    case 'n':
      return std::chrono::nanoseconds(1);
    default:
      return std::nullopt;
  }
}

std::optional<std::chrono::nanoseconds> ParseTimeout(std::string_view text) {
  if (text.size() < 2 || text.size() > kTimeoutDigits + 1) return std::nullopt;
  const std::string_view digits = text.substr(0, text.size() - 1);
  int64_t count = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  const bool all_digits = std::all_of(digits.begin(), digits.end(),
                                      [](char digit) { return digit >= '0' && digit <= '9'; });
  const auto unit = UnitOf(text.back());
  if (!all_digits || error != std::errc() || !unit) return std::nullopt;
  if (count > kTimeoutMax / *unit) return kTimeoutMax;
  return count * *unit;
}

}  // namespace

std::optional<HttpResponse> RefuseOtherThanGrpc(const HttpHead& head) {
  if (head.method != "POST") {
    HttpResponse refusal = Plain(405, "this port serves gRPC, which uses POST");
    refusal.headers.push_back({"allow", "POST"});
    return refusal;
  }
  const std::string* type = head.Find("content-type");
  const std::string media = type == nullptr ? "" : LowerCase(type->substr(0, type->find(';')));
  const std::string_view trimmed = TrimSpace(media);
  if (trimmed == "application/grpc" || trimmed == "application/grpc+proto") return std::nullopt;
  return Plain(415, "this port serves gRPC: the content type must be application/grpc");
}

absl::Status CheckTrailersPass(const HttpHead& head) {
  for (const std::string_view value : head.All("te")) {
    if (value == "trailers") return absl::OkStatus();
  }
  return Internal(
      "the request has no \"te: trailers\": a proxy between the client and the server does not "
      "support gRPC");
}

absl::StatusOr<TimePoint> DeadlineOf(const HttpHead& head) {
  const std::string* text = head.Find("grpc-timeout");
  if (text == nullptr) return TimePoint::max();
  if (const auto timeout = ParseTimeout(*text)) {
    return SteadyClock().Now() + *timeout;
  }
  return Internal("grpc-timeout is not 1 to {} digits and one of H, M, S, m, u, n", kTimeoutDigits);
}

}  // namespace penstock
