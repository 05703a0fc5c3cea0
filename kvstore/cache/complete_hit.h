#pragma once

#include <cstdint>
#include <vector>

#include "kernels/paged_kv.h"

namespace penstock {

// The longest prefix of blocks found that a sequence can go on behind. whole[i] is true if block i
// has its KV of all layers; others have lost that of the window group. A sequence that goes on
// behind n blocks, or behind `received` tokens if these are more, needs whole blocks from
// KvLayout::FirstGroupBlock on.
inline size_t CompleteHit(const std::vector<bool>& whole, const KvLayout& layout,
                          int64_t received) {
  size_t depth = whole.size();
  for (size_t i = depth; i > 0; --i) {  // blocks [i, depth) are whole or not needed
    const int64_t next = static_cast<int64_t>(depth) * layout.block_tokens;
    const auto first = static_cast<size_t>(layout.FirstGroupBlock(std::max(next, received)));
    if (first >= i) break;
    if (!whole[i - 1]) depth = i - 1;
  }
  return depth;
}

}  // namespace penstock
