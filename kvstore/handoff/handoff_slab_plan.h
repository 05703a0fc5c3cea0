#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "kvstore/handoff/handoff_coverage.h"

namespace penstock {

struct SlabSizes {
  size_t min = size_t{256} << 10;  // bytes; smaller slabs only when the wire would idle
  // Bytes; at least one layer of one block. Slabs are small enough that one is encoded while
  // another is on the link and a third is decoded.
  size_t max = size_t{1} << 20;
};

// Cuts announced KV into slabs, oldest first. Neighbouring ranges merge while they wait, so a
// handoff that is behind sends few large slabs. One thread at a time.
class HandoffSlabPlan {
 public:
  // `cell_bytes` is the size of one layer of one block.
  HandoffSlabPlan(SlabSizes sizes, size_t cell_bytes);

  void Add(KvRange range);
  // Drops the announced parts of blocks before `block`, which the peer has.
  void DropBlocksBefore(uint32_t block);
  // The next slab; nullopt when nothing is announced, or when it is small and `may_wait`.
  std::optional<KvRange> Next(bool may_wait);
  bool empty() const { return ready_.empty(); }

 private:
  void MergeBack();
  KvRange Cut(KvRange range);

  const SlabSizes sizes_;
  const size_t cell_bytes_;
  std::deque<KvRange> ready_;
};

}  // namespace penstock
