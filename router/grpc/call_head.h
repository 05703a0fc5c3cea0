#pragma once

#include <optional>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "http/http_message.h"

namespace penstock {

// Checks and parses the head of a gRPC request, except for its path. Pure, except for the clock.

// nullopt when the request is gRPC's: a POST of application/grpc or application/grpc+proto. Else
// the response to a client that speaks another protocol: 405 or 415.
std::optional<HttpResponse> RefuseOtherThanGrpc(const HttpHead& head);

// INTERNAL when "te: trailers" is missing: a proxy in between drops trailers, and a failed call
// would look like a success.
absl::Status CheckTrailersPass(const HttpHead& head);

// The deadline from grpc-timeout, counted from now; max() without one. INTERNAL when it is not 1 to
// 8 digits and one of H, M, S, m, u, n.
absl::StatusOr<TimePoint> DeadlineOf(const HttpHead& head);

}  // namespace penstock
