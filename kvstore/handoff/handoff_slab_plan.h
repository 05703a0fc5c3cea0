#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "kvstore/handoff/handoff_coverage.h"

namespace penstock {

struct SlabSizes {
  size_t min = size_t{256} << 10;  // bytes; smaller ones only when the wire would idle
  // Bytes; at least one layer of one block. So that one is encoded while another goes over the link
  // and a third is decoded.
  size_t max = size_t{1} << 20;
};

// Cuts what is ready into slabs, oldest first: neighbouring ranges grow together while they wait,
// so a handoff that is late sends few large slabs. One thread at a time.
class HandoffSlabPlan {
 public:
  // `cell_bytes`: one layer of one block.
  HandoffSlabPlan(SlabSizes sizes, size_t cell_bytes);

  void Add(KvRange range);
  // What is ready of the blocks before this one is not wanted.
  void DropBlocksBefore(uint32_t block);
  // The next slab; nothing when none is ready, or when what is ready is small and `may_wait`.
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
