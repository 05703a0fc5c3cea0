#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace penstock {

// Status factories with formatting: InvalidArgument("sampling.top_p is {}, the limit is 1", p).
//
// This room, base/, has what every other room may use: statuses, checks, clocks, queues, mutexes,
// byte and text helpers. It includes no other room and does not know what the processes do.
#define PENSTOCK_STATUS_FACTORY(Name)                                           \
  template <class... Args>                                                      \
  absl::Status Name(fmt::format_string<Args...> format, Args&&... args) {       \
    return absl::Name##Error(fmt::format(format, std::forward<Args>(args)...)); \
  }
PENSTOCK_STATUS_FACTORY(Aborted)
PENSTOCK_STATUS_FACTORY(Cancelled)
PENSTOCK_STATUS_FACTORY(DataLoss)
PENSTOCK_STATUS_FACTORY(DeadlineExceeded)
PENSTOCK_STATUS_FACTORY(FailedPrecondition)
PENSTOCK_STATUS_FACTORY(Internal)
PENSTOCK_STATUS_FACTORY(InvalidArgument)
PENSTOCK_STATUS_FACTORY(NotFound)
PENSTOCK_STATUS_FACTORY(OutOfRange)
PENSTOCK_STATUS_FACTORY(ResourceExhausted)
PENSTOCK_STATUS_FACTORY(Unavailable)
#undef PENSTOCK_STATUS_FACTORY

inline std::string Message(const absl::Status& status) {
  return std::string(status.message().data(), status.message().size());
}

// Returns the status with "context: " before its message.
inline absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), fmt::format("{}: {}", context, Message(status)));
}

}  // namespace penstock

#define PENSTOCK_CONCAT_INNER(a, b) a##b
#define PENSTOCK_CONCAT(a, b) PENSTOCK_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                  \
    if (absl::Status status_of_expression = (expression); !status_of_expression.ok()) { \
      return status_of_expression;                                                      \
    }                                                                                   \
  } while (false)

#define ASSIGN_OR_RETURN(target, expression) \
  ASSIGN_OR_RETURN_INNER(PENSTOCK_CONCAT(status_or_, __LINE__), target, expression)
#define ASSIGN_OR_RETURN_INNER(temporary, target, expression) \
  auto temporary = (expression);                              \
  if (!temporary.ok()) return temporary.status();             \
  target = *std::move(temporary)
