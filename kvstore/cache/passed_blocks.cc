#include "kvstore/cache/passed_blocks.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

// Kernels load whole tiles of at most 128 tokens, which are 8 blocks of 16.
constexpr size_t kLoadedBefore = 8;

}  // namespace

size_t CountPassed(std::span<const BlockRef> blocks) {
  const auto live =
      std::find_if(blocks.begin(), blocks.end(), [](const BlockRef& block) { return bool{block}; });
  return static_cast<size_t>(live - blocks.begin());
}

size_t CountWithoutRows(std::span<const BlockRef> blocks, const KvLayout& layout) {
  if (layout.group.empty()) return 0;
  size_t first = blocks.size();
  while (first > 0 && blocks[first - 1].holds_row()) --first;
  return first;
}

std::vector<BlockRef> TakePassed(std::span<BlockRef> blocks, std::span<uint32_t> table,
                                 size_t first) {
  PENSTOCK_CHECK_LT(first, blocks.size());
  PENSTOCK_CHECK_EQ(blocks.size(), table.size());
  std::vector<BlockRef> passed;
  for (size_t i = first; i > 0 && blocks[i - 1]; --i) passed.push_back(std::move(blocks[i - 1]));
  const size_t begin = first - std::min(first, kLoadedBefore);
  std::fill(table.begin() + static_cast<std::ptrdiff_t>(begin),
            table.begin() + static_cast<std::ptrdiff_t>(first), table[first]);
  return passed;
}

}  // namespace penstock
