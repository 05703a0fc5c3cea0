#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/paged_kv.h"
#include "kernels/selection/known_bounds.h"

namespace penstock {

// The least and the greatest element of each dimension of a page's keys, for every layer and KV
// head, of the pages that were asked for so far. Keys are those that attention sees: rotated by
// their positions, and decoded where pages are quantised. Bounds are bf16, as keys are, so nothing
// is rounded. A page has at most 1 / block_tokens of its bf16 KV as bounds.
//
// Bounds are derived from pages and are never sent.
//
// The room kernels/selection decides which pages a query attends to (Quest, Tang et al., arXiv
// 2406.10774). It works on pages and queries of one layer. It knows no model, no request and no
// owner of a page.
class PageBounds {
 public:
  // The blocks whose bounds are complete.
  KnownBounds& known() { return known_; }
  const KnownBounds& known() const { return known_; }
  // Makes room for the bounds of a block, which are not complete any more.
  void Reserve(const PagedKv& kv, uint32_t block);
  // Computes the bounds of one layer and head of a block that has room, all of whose slots are
  // written. Calls for other blocks, layers and heads may run at the same time.
  void Compute(const PagedKv& kv, uint32_t block, int32_t layer, int32_t kv_head);

  // The greatest elements, then the least: [2][head_dim].
  const Bf16* Of(const KvLayout& layout, uint32_t block, int32_t layer, int32_t kv_head) const {
    return blocks_[block].get() + Offset(layout, layer, kv_head);
  }
  size_t bytes() const { return bytes_; }
  // The memory of a block's bounds.
  static size_t BytesOf(const KvLayout& layout) {
    return Offset(layout, layout.layers, 0) * sizeof(Bf16);
  }

 private:
  static size_t Offset(const KvLayout& layout, int32_t layer, int32_t kv_head) {
    return static_cast<size_t>(layer * layout.kv_heads + kv_head) * 2 *
           static_cast<size_t>(layout.head_dim);
  }

  KvLayout layout_;  // of all blocks here
  KnownBounds known_;
  std::vector<std::unique_ptr<Bf16[]>> blocks_;  // [layer][kv_head][2][head_dim]
  size_t bytes_ = 0;
};

}  // namespace penstock
