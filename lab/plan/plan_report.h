#pragma once

#include <string>

#include "lab/plan/capacity_plan.h"

namespace penstock {

// For people, for programs, and as a picture: sequences by context, and time between tokens by
// batch. Times in JSON are milliseconds, sizes bytes.
std::string PlanText(const PlanRequest& request, const CapacityPlan& plan);
std::string PlanJson(const PlanRequest& request, const CapacityPlan& plan);
std::string PlanSvg(const PlanRequest& request, const CapacityPlan& plan);

}  // namespace penstock
