#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kvstore/tiers/disk/store_types.h"
#include "kvstore/tiers/eviction_order.h"
#include "kvstore/tiers/slot_arena.h"

namespace penstock {

// Blocks in slots of host memory. Tracks which slot holds which block; copying bytes in and out is
// the owner's task. A slot is free, or taken (used by the owner), or holds a block that look-ups
// find. One thread at a time.
class DramTier {
 public:
  DramTier(std::unique_ptr<SlotArena> arena, std::unique_ptr<EvictionOrder> order);

  uint32_t slots() const { return arena_->slots(); }
  uint32_t free_slots() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t blocks() const { return static_cast<uint32_t>(index_.size()); }
  SlotArena& arena() { return *arena_; }

  // A free slot becomes taken; nullopt when no slot is free.
  std::optional<uint32_t> Take();
  // A taken slot becomes free.
  void GiveBack(uint32_t slot);
  // A taken and filled slot becomes the block's. The block must not be in the tier.
  void Publish(uint32_t slot, const BlockName& name, uint32_t uses, bool partial = false);
  // A block's slot becomes taken.
  void Withdraw(uint32_t slot);

  std::optional<uint32_t> Find(const BlockId& id) const;
  // Prefetches the memory that Find(id) will read.
  void Prefetch(const BlockId& id) const { index_.prefetch(id); }
  const BlockName& name(uint32_t slot) const { return records_[slot].name; }
  uint32_t uses(uint32_t slot) const { return records_[slot].uses; }
  bool partial(uint32_t slot) const { return records_[slot].partial; }  // as in SpillBlock

  // Counts uses of the block and moves it to the end of the eviction order.
  void Touch(uint32_t slot, uint32_t uses = 1);
  // A pinned block cannot be a victim. Pins are counted.
  void Pin(uint32_t slot) { ++records_[slot].pins; }
  void Unpin(uint32_t slot);
  bool pinned(uint32_t slot) const { return records_[slot].pins > 0; }

  // The block to evict first.
  std::optional<uint32_t> Victim() const;
  // The slots of all blocks, in reverse order of eviction.
  std::vector<uint32_t> Blocks() const;
  // All blocks, in no particular order.
  std::vector<BlockName> Names() const;

 private:
  enum class State : uint8_t { kFree, kTaken, kBlock };
  struct Record {
    BlockName name;
    uint32_t uses = 0;
    uint16_t pins = 0;
    State state = State::kFree;
    bool partial = false;
  };

  const std::unique_ptr<SlotArena> arena_;
  const std::unique_ptr<EvictionOrder> order_;  // of slots that hold blocks
  std::vector<Record> records_;                 // by slot
  std::vector<uint32_t> free_;
  absl::flat_hash_map<BlockId, uint32_t> index_;
};

}  // namespace penstock
