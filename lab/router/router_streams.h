#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct RouterStreamsOptions {
  int streams = 2000;
  int requests = 1000;  // of each kind, while the streams are open
  Duration token_every = std::chrono::milliseconds(500);  // of every stream
};

// `router_added_2000_p99`: what the router adds to the time to the first token while 2,000
// answers are open and stream through it: the 99th percentile through the router, less that of the
// same prefill worker asked directly, in turns. Workers, router and clients share this machine and
// this process. `fraction` is of the limit of 2 ms: less is better. UNAVAILABLE when a stream ends.
absl::StatusOr<std::vector<BenchRow>> RunRouterStreamsBench(
    const RouterStreamsOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
