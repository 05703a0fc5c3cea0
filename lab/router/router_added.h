#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct RouterBenchOptions {
  int requests = 1000;  // of each kind
};

// `router_added`: milliseconds that the router puts between a client and its first token, against
// workers that answer at once. The median time to the first token through a router, over loopback
// sockets, less the median when the same prefill worker is asked directly. `fraction` is of the
// limit of 1 ms: less is better.
absl::StatusOr<std::vector<BenchRow>> RunRouterBench(
    const RouterBenchOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
