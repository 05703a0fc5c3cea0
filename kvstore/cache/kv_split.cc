#include "kvstore/cache/kv_split.h"

#include <algorithm>
#include <cmath>

namespace penstock {

KvRoom SplitKvMemory(const KvLayout& layout, uint64_t bytes, int64_t longest, int64_t step) {
  const size_t stride =
      layout.span > 0 ? layout.FullStride() + layout.RowStride() : layout.BlockStride();
  const auto together = static_cast<int64_t>(bytes / stride);
  const KvRoom undivided{.blocks = together, .rows = together};
  if (layout.group.empty()) return undivided;
  const int64_t one = layout.RowsAtOnce(longest, step);
  const double share =
      std::sqrt(static_cast<double>(one) / static_cast<double>(layout.BlocksFor(longest)));
  const auto full = static_cast<double>(layout.FullStride());
  const auto row = static_cast<double>(layout.RowStride());
  const auto rows = std::max(
      2 * one, static_cast<int64_t>(static_cast<double>(bytes) / (full + share * row) * share));
  const double left = static_cast<double>(bytes) - static_cast<double>(rows) * row;
  const KvRoom room{.blocks = static_cast<int64_t>(std::max(left, 0.0) / full), .rows = rows};
  return room.blocks > undivided.blocks ? room : undivided;
}

}  // namespace penstock
