#include "router/index/prefix_matches.h"

#include <algorithm>

namespace penstock {

bool PrefixMatches::Add(const PrefixRun& run, uint32_t offset, uint32_t count, uint32_t depth) {
  bool carried = false;
  std::array<RunHolding, kBlockTiers> of_worker;  // the worker's blocks; bit 0 is `offset`
  for (uint32_t i = 0; i < run.holdings();) {
    const uint16_t worker = run.holding(i).worker;
    size_t tiers = 0;
    for (; i < run.holdings() && tiers < kBlockTiers; ++i) {
      const RunHolding holding = run.holding(i);
      if (holding.worker != worker) break;
      of_worker[tiers] = holding;
      of_worker[tiers++].blocks >>= offset;
    }
    carried |= AddWorker(worker, {of_worker.data(), tiers}, count, depth);
  }
  return carried;
}

bool PrefixMatches::AddWorker(uint16_t worker, std::span<const RunHolding> of_worker,
                              uint32_t count, uint32_t depth) {
  uint64_t held = 0;
  for (const RunHolding& holding : of_worker) held |= holding.blocks;
  const uint32_t reach = std::min<uint32_t>(std::countr_one(held), count);
  if (reach == 0) return false;
  if (worker >= hits_.size()) hits_.resize(worker + 1);
  Hit& hit = hits_[worker];
  if (hit.blocks != depth) return false;  // the worker lacks an earlier block
  if (depth == 0) workers_.push_back(worker);
  hit.blocks += reach;
  for (const RunHolding& holding : of_worker) {
    hit.in_tier[static_cast<size_t>(holding.tier)] +=
        static_cast<uint32_t>(std::popcount(holding.blocks & LowBits(reach)));
  }
  return reach == count;
}

}  // namespace penstock
