#pragma once

#include <cstdint>
#include <vector>

#include "kernels/paged_kv.h"

namespace penstock {

// The blocks whose bounds are complete. Bounds stay right until the block is taken from its pool
// again, which its serial number tells (PagedKv::serials); without serial numbers nothing is
// known. One thread.
class KnownBounds {
 public:
  // True if the bounds of the block, as it is now, are complete.
  bool Has(const PagedKv& kv, uint32_t block) const;
  // They are not any more. If the layout is another one than before, no block's are.
  void Forget(const PagedKv& kv, uint32_t block);
  // All layers of the block have been computed, from keys that stay.
  void Remember(const PagedKv& kv, uint32_t block);

 private:
  KvLayout layout_;                // of all blocks here
  std::vector<uint64_t> serials_;  // of the block when its bounds were completed; 0: they are not
};

}  // namespace penstock
