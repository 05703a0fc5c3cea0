#pragma once

#include <chrono>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "http/http_message.h"

namespace penstock {

// What the head of a gRPC request says beside its path.

// Nothing where the request is gRPC's: a POST of application/grpc or application/grpc+proto. Else
// what to say to a client that took this port for another: 405, 415.
std::optional<HttpResponse> RefuseOtherThanGrpc(const HttpHead& head);

// INTERNAL where there is no "te: trailers": something between does not pass on what follows a
// body, and the call's end would look like a success.
absl::Status CheckTrailersPass(const HttpHead& head);

// By grpc-timeout, from now; max() where there is none. INTERNAL where it is not 1 to 8 digits and
// one of H, M, S, m, u, n.
using DeadlineTime = std::chrono::system_clock::time_point;
absl::StatusOr<DeadlineTime> DeadlineOf(const HttpHead& head);

}  // namespace penstock
