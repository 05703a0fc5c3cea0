#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace penstock {

// The machine-readable part of an error. It travels as payloads of the status; the gRPC and the
// OpenAI front end each show it in their own format.
struct ErrorDetail {
  std::string field;   // the request's field as inference.proto names it; empty: no single field
  std::string reason;  // e.g. "context_length_exceeded"; empty: the status code is enough
  std::optional<Duration> retry_after;  // the delay before a retry; nullopt: a retry cannot help
};

ErrorDetail DetailOf(const absl::Status& status);
// The status with the parts of `detail` that are set added to it.
absl::Status WithDetail(absl::Status status, const ErrorDetail& detail);

// The beginning of a client's text for an error message: at most `bytes_max` bytes, cut between
// characters. Bytes that are not UTF-8 become U+FFFD, so that the message is UTF-8.
std::string ShownText(std::string_view text, size_t bytes_max = 64);

// INVALID_ARGUMENT with the message "FIELD REST" and the field as detail.
template <class... Args>
absl::Status BadField(std::string_view field, fmt::format_string<Args...> rest, Args&&... args) {
  return WithDetail(InvalidArgument("{} {}", field, fmt::format(rest, std::forward<Args>(args)...)),
                    {.field = std::string(field)});
}

// Reasons that more than one file gives or reads.
inline constexpr char kReasonContextLength[] = "context_length_exceeded";
inline constexpr char kReasonOverloaded[] = "overloaded";
inline constexpr char kReasonQueueFull[] = "queue_full";
inline constexpr char kReasonTooSlow[] = "too_slow";
inline constexpr char kReasonDraining[] = "draining";
inline constexpr char kReasonNoWorker[] = "no_ready_worker";
inline constexpr char kReasonExcluded[] = "endpoint_excluded";
inline constexpr char kReasonModel[] = "model_not_found";
inline constexpr char kReasonQuota[] = "tenant_quota";
inline constexpr char kReasonOtherPrompt[] = "other_prompt_failed";

}  // namespace penstock
