#pragma once

#include <string>
#include <vector>

#include "lab/plan/capacity_plan.h"

namespace penstock {

// Full sentences, each with the limit that it is about: links that are too slow, a model that
// workers on GPUs refuse, experts on a disk, contexts that do not fit, and an exchange that takes
// most of the time.
std::vector<std::string> WarningsOf(const PlanRequest& request, const CapacityPlan& plan);

}  // namespace penstock
