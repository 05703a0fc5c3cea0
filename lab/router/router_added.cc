#include "lab/router/router_added.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "lab/router/router_probe.h"

namespace penstock {
namespace {

constexpr int kWarmUp = 100;
constexpr double kAddedLimitMs = 1.0;

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunRouterBench(
    const RouterBenchOptions& options, const std::function<void(const std::string&)>& progress) {
  progress(
      fmt::format("router: {} requests, and {} without it", options.requests, options.requests));
  ASSIGN_OR_RETURN(const auto probe, RouterProbe::Start());
  std::vector<double> direct;
  std::vector<double> routed;
  // In turns, so that whatever else the machine does falls on both.
  for (int i = 0; i < kWarmUp + options.requests; ++i) {
    ASSIGN_OR_RETURN(const double direct_ms, probe->AskPrefillWorker());
    ASSIGN_OR_RETURN(const double routed_ms, probe->AskRouter());
    if (i < kWarmUp) continue;
    direct.push_back(direct_ms);
    routed.push_back(routed_ms);
  }
  const double added = Median(std::move(routed)) - Median(std::move(direct));
  return std::vector<BenchRow>{{.name = "router_added",
                                .value = added,
                                .unit = "ms",
                                .limit = kAddedLimitMs,
                                .fraction = added / kAddedLimitMs}};
}

}  // namespace penstock
