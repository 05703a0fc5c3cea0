#include "lab/replay/demotion_replay.h"

#include <memory>
#include <span>
#include <utility>

#include "kvstore/tiers/dram_tier.h"

namespace penstock {
namespace {

// Nothing is ever written into them.
constexpr size_t kSlotBytes = 4096;

absl::StatusOr<std::unique_ptr<DramTier>> MakeTier(uint32_t blocks) {
  ASSIGN_OR_RETURN(auto arena, SlotArena::Create(kSlotBytes, blocks));
  return std::make_unique<DramTier>(std::move(arena), MakeLruOrder(blocks));
}

class Replay {
 public:
  Replay(DramTier& dram, DramTier& nvme, const DemotionRule& rule)
      : dram_(dram), nvme_(nvme), rule_(rule) {}

  void Serve(const CacheRequest& request) {
    const std::span<const BlockId> ids = BlocksToKeep(request, rule_.keeps_partial);
    for (const BlockId& id : ids) {
      const bool below = !dram_.Find(id) && nvme_.Find(id);
      if (!below && !dram_.Find(id)) break;
      counts_.hits += below ? 1 : 0;
    }
    // The tail first, so that no block goes before those that need it.
    for (size_t i = ids.size(); i-- > 0;) Use(ids[i]);
  }

  const DemotionCounts& counts() const { return counts_; }

 private:
  void Use(const BlockId& id) {
    if (const auto slot = dram_.Find(id)) return dram_.Touch(*slot);
    uint32_t uses = 1;
    if (const auto slot = nvme_.Find(id)) {
      uses += nvme_.uses(*slot);
      nvme_.Touch(*slot);
      if (!rule_.keeps_copies) Drop(nvme_, *slot);
    }
    if (dram_.free_slots() == 0) Demote(*dram_.Victim());
    dram_.Publish(*dram_.Take(), {.id = id, .parent = {}}, uses);
  }

  void Demote(uint32_t slot) {
    const BlockName name = dram_.name(slot);
    const uint32_t uses = dram_.uses(slot);
    Drop(dram_, slot);
    if (uses < rule_.uses_min || nvme_.Find(name.id)) return;
    if (nvme_.free_slots() == 0) Drop(nvme_, *nvme_.Victim());
    nvme_.Publish(*nvme_.Take(), name, uses);
    ++counts_.writes;
  }

  static void Drop(DramTier& tier, uint32_t slot) {
    tier.Withdraw(slot);
    tier.GiveBack(slot);
  }

  DramTier& dram_;
  DramTier& nvme_;
  const DemotionRule rule_;
  DemotionCounts counts_;
};

}  // namespace

absl::StatusOr<DemotionCounts> ReplayDemotion(const CacheTrace& trace, uint32_t dram_blocks,
                                              uint32_t nvme_blocks, const DemotionRule& rule) {
  ASSIGN_OR_RETURN(const auto dram, MakeTier(dram_blocks));
  ASSIGN_OR_RETURN(const auto nvme, MakeTier(nvme_blocks));
  Replay replay(*dram, *nvme, rule);
  for (const CacheRequest& request : trace.requests) replay.Serve(request);
  return replay.counts();
}

}  // namespace penstock
