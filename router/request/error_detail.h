#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace penstock {

// What an error says beside its message, for programs to act on. It travels in the status, and each
// front door shows it in its own way.
struct ErrorDetail {
  std::string field;   // of the request as inference.proto names it; empty: none in particular
  std::string reason;  // one word, e.g. "context_length_exceeded"; empty: the code says it all
  std::optional<Duration> retry_after;  // when it is worth another try
};

ErrorDetail DetailOf(const absl::Status& status);
// The same status with `detail`'s set parts.
absl::Status WithDetail(absl::Status status, const ErrorDetail& detail);

// INVALID_ARGUMENT whose message is "FIELD REST", with its field as detail.
template <class... Args>
absl::Status BadField(std::string_view field, fmt::format_string<Args...> rest, Args&&... args) {
  return WithDetail(InvalidArgument("{} {}", field, fmt::format(rest, std::forward<Args>(args)...)),
                    {.field = std::string(field)});
}

// The reasons that more than one place gives or reads.
inline constexpr char kReasonContextLength[] = "context_length_exceeded";
inline constexpr char kReasonOverloaded[] = "overloaded";
inline constexpr char kReasonQueueFull[] = "queue_full";
inline constexpr char kReasonTooSlow[] = "too_slow";
inline constexpr char kReasonDraining[] = "draining";
inline constexpr char kReasonNoWorker[] = "no_ready_worker";
inline constexpr char kReasonModel[] = "model_not_found";
inline constexpr char kReasonQuota[] = "tenant_quota";
inline constexpr char kReasonOtherPrompt[] = "other_prompt_failed";

}  // namespace penstock
