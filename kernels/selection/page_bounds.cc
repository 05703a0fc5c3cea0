#include "kernels/selection/page_bounds.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/simd.h"
#include "kernels/kv_rows.h"

namespace penstock {
void PageBounds::Reserve(const PagedKv& kv, uint32_t block) {
  if (kv.layout != layout_) {
    blocks_.clear();
    bytes_ = 0;
    layout_ = kv.layout;
  }
  known_.Forget(kv, block);
  if (blocks_.size() <= block) blocks_.resize(static_cast<size_t>(kv.blocks));
  if (blocks_[block] != nullptr) return;
  const size_t size = Offset(layout_, layout_.layers, 0);
  blocks_[block] = std::make_unique<Bf16[]>(size);
  bytes_ += size * sizeof(Bf16);
}

void PageBounds::Compute(const PagedKv& kv, uint32_t block, int32_t layer, int32_t kv_head) {
  const auto dims = static_cast<size_t>(kv.layout.head_dim);
  const auto tokens = static_cast<size_t>(kv.layout.block_tokens);
  std::vector<Bf16> keys(tokens * dims);
  cpu::LoadKvRows(kv, {.block = block, .layer = layer, .kv_head = kv_head},
                  static_cast<int64_t>(tokens), keys.data());
  std::vector<float> greatest(dims), least(dims), key(dims);
  const SimdOps& simd = ActiveSimd();
  const auto size = static_cast<int64_t>(dims);
  simd.to_float(keys.data(), size, greatest.data());
  least = greatest;
  for (size_t token = 1; token < tokens; ++token) {
    simd.to_float(keys.data() + token * dims, size, key.data());
    for (size_t d = 0; d < dims; ++d) {
      greatest[d] = std::max(greatest[d], key[d]);
      least[d] = std::min(least[d], key[d]);
    }
  }
  Bf16* bounds = blocks_[block].get() + Offset(kv.layout, layer, kv_head);
  simd.to_bf16(greatest.data(), size, bounds);
  simd.to_bf16(least.data(), size, bounds + dims);
}

}  // namespace penstock
