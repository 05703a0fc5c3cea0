#pragma once

#include "cli/options.h"

namespace CLI {
class App;
}

namespace penstock {

// The options of commands for those who run clusters.
void AddPlan(CLI::App& app, PlanOptions& plan);

}  // namespace penstock
