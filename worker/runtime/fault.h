#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// For tests with real processes: does something drastic the first time a handoff reaches a step.
// `spec` is STEP:ACTION (proto/config.proto, field `fault`); an empty one gives an empty function.
absl::StatusOr<std::function<void(std::string_view step)>> MakeFault(const std::string& spec);
// What a decode worker's own handoffs say to it: "move-" and the step.
std::function<void(std::string_view step)> FaultOfMoves(
    std::function<void(std::string_view step)> fault);

}  // namespace penstock
