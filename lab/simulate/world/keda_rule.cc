#include "lab/simulate/world/keda_rule.h"

#include <algorithm>
#include <cmath>

namespace penstock {
namespace {

// Kubernetes' defaults, and the chart's values.
constexpr Duration kSync = std::chrono::seconds(15);
constexpr Duration kStabilization = std::chrono::seconds(300);
constexpr double kTolerance = 0.1;
constexpr uint32_t kUpAtOnce = 4;  // or as many as there are
constexpr double kWaitingTokens = 8192;
constexpr double kKvUsage = 0.7;

}  // namespace

ReplicaCounts KedaRule::Observe(const std::vector<WorkerPicture>& workers,
                                const ReplicaCounts& current, TimePoint now) {
  if (now < next_look_) return current;
  next_look_ = now + kSync;
  double waiting_tokens = 0, usage = 0;
  for (const WorkerPicture& worker : workers) {
    const v1::WorkerState& state = worker.state;
    if (worker.status == "silent") continue;  // Its pod is gone.
    if (state.role() == v1::WorkerState::PREFILL) {
      waiting_tokens += static_cast<double>(state.waiting_tokens());
    } else {
      usage += static_cast<double>(state.kv_blocks_used() + state.kv_blocks_reserved()) /
               static_cast<double>(std::max<uint64_t>(1, state.kv_blocks_total()));
    }
  }
  return {.prefill = Next(waiting_tokens, kWaitingTokens, current.prefill, prefill_, now),
          .decode = Next(usage, kKvUsage, current.decode, decode_, now)};
}

uint32_t KedaRule::Next(double total, double threshold, uint32_t current, History& history,
                        TimePoint now) {
  const double ratio = total / (threshold * std::max(1u, current));
  uint32_t wanted = std::abs(ratio - 1) <= kTolerance
                        ? current
                        : static_cast<uint32_t>(std::ceil(total / threshold));
  wanted = std::clamp(wanted, min_, max_);
  history.emplace_back(now, wanted);
  while (history.front().first < now - kStabilization) history.pop_front();
  uint32_t highest = 0;
  for (const auto& [at, count] : history) highest = std::max(highest, count);
  if (highest < current) return highest;
  return std::min(std::max(wanted, current), current + std::max(current, kUpAtOnce));
}

}  // namespace penstock
