#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// For tests with real processes: kills or stops this process the first time that a handoff reaches
// a step. `spec` is STEP:ACTION (proto/config.proto, field `fault`). An empty `spec` gives an empty
// function.
absl::StatusOr<std::function<void(std::string_view step)>> MakeFault(const std::string& spec);
// The same for the handoffs that a decode worker sends: their steps are named "move-" and the step.
std::function<void(std::string_view step)> FaultOfMoves(
    std::function<void(std::string_view step)> fault);

}  // namespace penstock
