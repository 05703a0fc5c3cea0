#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/paged_kv.h"

namespace penstock {

// The least and the greatest element of each dimension of a page's keys, for every layer and KV
// head, of the pages that were asked for so far. Keys are those that attention sees: rotated by
// their positions, and decoded where pages are quantised. Bounds are bf16, as keys are, so nothing
// is rounded. A page has at most 1 / block_tokens of its bf16 KV as bounds.
//
// Bounds are derived from pages and are never sent. Those of a block stay right until the block is
// taken from its pool again, which its serial number tells (PagedKv::serials).
//
// The room kernels/selection decides which pages a query attends to (Quest, Tang et al., arXiv
// 2406.10774). It works on pages and queries of one layer. It knows no model, no request and no
// owner of a page.
class PageBounds {
 public:
  // True if the bounds of the block, as it is now, are complete.
  bool Has(const PagedKv& kv, uint32_t block) const;
  // Makes room for the bounds of a block, which are not complete any more.
  void Reserve(const PagedKv& kv, uint32_t block);
  // Computes the bounds of one layer and head of a block that has room, all of whose slots are
  // written. Calls for other blocks, layers and heads may run at the same time.
  void Compute(const PagedKv& kv, uint32_t block, int32_t layer, int32_t kv_head);
  // All layers of the block have been computed, from keys that stay. Without serial numbers nothing
  // is remembered.
  void Complete(const PagedKv& kv, uint32_t block);

  // The greatest elements, then the least: [2][head_dim].
  const Bf16* Of(const KvLayout& layout, uint32_t block, int32_t layer, int32_t kv_head) const {
    return blocks_[block].bounds.get() + Offset(layout, layer, kv_head);
  }
  size_t bytes() const { return bytes_; }
  // The memory of a block's bounds.
  static size_t BytesOf(const KvLayout& layout) {
    return Offset(layout, layout.layers, 0) * sizeof(Bf16);
  }

 private:
  struct Block {
    uint64_t serial = 0;             // of the block when its bounds were completed; 0: they are not
    std::unique_ptr<Bf16[]> bounds;  // [layer][kv_head][2][head_dim]
  };

  static size_t Offset(const KvLayout& layout, int32_t layer, int32_t kv_head) {
    return static_cast<size_t>(layer * layout.kv_heads + kv_head) * 2 *
           static_cast<size_t>(layout.head_dim);
  }

  KvLayout layout_;  // of all blocks here
  std::vector<Block> blocks_;
  size_t bytes_ = 0;
};

}  // namespace penstock
