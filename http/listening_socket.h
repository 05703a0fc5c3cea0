#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// Binds `listen` ("host:port"; port 0 selects a free one) and listens. Returns a non-blocking
// socket, which the caller closes; `*endpoint` is host:port with the port that was bound.
// INVALID_ARGUMENT for a wrong address; RESOURCE_EXHAUSTED, which names `flag`, if it cannot be
// bound.
absl::StatusOr<int> ListenOn(const std::string& listen, std::string_view flag,
                             std::string* endpoint);

}  // namespace penstock
