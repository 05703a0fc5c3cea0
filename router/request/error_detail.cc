#include "router/request/error_detail.h"

#include <absl/strings/cord.h>

#include <charconv>

#include "base/utf8.h"

namespace penstock {
namespace {

constexpr char kField[] = "penstock/field";
constexpr char kReason[] = "penstock/reason";
constexpr char kRetry[] = "penstock/retry_after_ns";

std::optional<std::string> Get(const absl::Status& status, const char* key) {
  const auto payload = status.GetPayload(key);
  if (!payload) return std::nullopt;
  return std::string(*payload);
}

}  // namespace

std::string ShownText(std::string_view text, size_t bytes_max) {
  std::string shown;
  while (!text.empty()) {
    const Utf8Step step = DecodeUtf8(text);
    const std::string_view part =
        step.kind == Utf8Step::Kind::kValid ? text.substr(0, step.length) : kReplacementCharacter;
    if (shown.size() + part.size() > bytes_max) break;
    shown += part;
    text.remove_prefix(step.length);
  }
  return shown;
}

ErrorDetail DetailOf(const absl::Status& status) {
  ErrorDetail detail;
  detail.field = Get(status, kField).value_or("");
  detail.reason = Get(status, kReason).value_or("");
  if (const auto text = Get(status, kRetry)) {
    int64_t nanoseconds = 0;
    std::from_chars(text->data(), text->data() + text->size(), nanoseconds);
    detail.retry_after = Duration(nanoseconds);
  }
  return detail;
}

absl::Status WithDetail(absl::Status status, const ErrorDetail& detail) {
  if (!detail.field.empty()) status.SetPayload(kField, absl::Cord(detail.field));
  if (!detail.reason.empty()) status.SetPayload(kReason, absl::Cord(detail.reason));
  if (detail.retry_after) {
    status.SetPayload(kRetry, absl::Cord(std::to_string(detail.retry_after->count())));
  }
  return status;
}

}  // namespace penstock
