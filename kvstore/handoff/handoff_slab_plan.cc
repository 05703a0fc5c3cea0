#include "kvstore/handoff/handoff_slab_plan.h"

#include <algorithm>

#include "base/check.h"
#include "kvstore/wire/wire.h"

namespace penstock {

HandoffSlabPlan::HandoffSlabPlan(SlabSizes sizes, size_t cell_bytes)
    : sizes_(sizes), cell_bytes_(cell_bytes) {
  PENSTOCK_CHECK_GT(cell_bytes, 0u);
  PENSTOCK_CHECK_LE(std::max(sizes.max, cell_bytes), kWirePayloadMax);
}

void HandoffSlabPlan::Add(KvRange range) {
  ready_.push_back(range);
  MergeBack();
}

void HandoffSlabPlan::DropBlocksBefore(uint32_t block) {
  for (KvRange& range : ready_) range.first_block = std::max(range.first_block, block);
  std::erase_if(ready_, [](const KvRange& range) { return range.first_block >= range.last_block; });
}

// Merges adjacent rectangles.
void HandoffSlabPlan::MergeBack() {
  while (ready_.size() >= 2) {
    const KvRange& back = ready_.back();
    KvRange& before = ready_[ready_.size() - 2];
    const bool same_blocks =
        before.first_block == back.first_block && before.last_block == back.last_block;
    const bool same_layers =
        before.first_layer == back.first_layer && before.last_layer == back.last_layer;
    if (same_blocks && before.last_layer == back.first_layer) {
      before.last_layer = back.last_layer;
    } else if (same_layers && before.last_block == back.first_block) {
      before.last_block = back.last_block;
    } else {
      return;
    }
    ready_.pop_back();
  }
}

std::optional<KvRange> HandoffSlabPlan::Next(bool may_wait) {
  if (ready_.empty()) return std::nullopt;
  // Only the last range can still grow.
  const bool small = ready_.front().cells() * cell_bytes_ < sizes_.min;
  if (small && may_wait && ready_.size() == 1) return std::nullopt;
  const KvRange range = ready_.front();
  ready_.pop_front();
  return Cut(range);
}

// Cuts off whole layers when they fit, so that early layers are sent early, else blocks of one
// layer. The rest stays at the front.
KvRange HandoffSlabPlan::Cut(KvRange range) {
  const size_t cells_max = std::max<size_t>(1, sizes_.max / cell_bytes_);
  if (range.cells() <= cells_max) return range;
  KvRange cut = range;
  if (range.blocks() <= cells_max) {
    cut.last_layer = range.first_layer + static_cast<uint32_t>(cells_max / range.blocks());
    range.first_layer = cut.last_layer;
    ready_.push_front(range);
    return cut;
  }
  cut.last_layer = range.first_layer + 1;
  KvRange rest_of_layer = cut;
  range.first_layer = cut.last_layer;
  if (range.first_layer < range.last_layer) ready_.push_front(range);
  cut.last_block = range.first_block + static_cast<uint32_t>(cells_max);
  rest_of_layer.first_block = cut.last_block;
  ready_.push_front(rest_of_layer);
  return cut;
}

}  // namespace penstock
