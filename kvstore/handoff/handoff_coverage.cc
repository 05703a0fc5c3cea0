#include "kvstore/handoff/handoff_coverage.h"

#include <algorithm>

#include "base/check.h"

namespace penstock {
namespace {

// The runs of neighbouring layers of `range` that are in the window group, or that are not.
std::vector<KvRange> LayerRuns(const KvLayout& layout, const KvRange& range, bool in_group) {
  std::vector<KvRange> runs;
  for (uint32_t layer = range.first_layer; layer < range.last_layer; ++layer) {
    if (layout.group.Has(static_cast<int32_t>(layer)) != in_group) continue;
    if (runs.empty() || runs.back().last_layer != layer) {
      runs.push_back(range);
      runs.back().first_layer = layer;
    }
    runs.back().last_layer = layer + 1;
  }
  return runs;
}

// The blocks of `range` before the first that the window group sees.
KvRange Passed(const KvLayout& layout, uint32_t tokens, const KvRange& range) {
  KvRange passed = range;
  const auto first = static_cast<uint32_t>(layout.FirstGroupBlock(tokens));
  passed.last_block = std::clamp(first, range.first_block, range.last_block);
  return passed;
}

}  // namespace

KvRange RangeOf(const SlabHeader& header) {
  return {.first_layer = header.first_layer,
          .last_layer = uint32_t{header.first_layer} + header.layers,
          .first_block = header.first_block,
          .last_block = header.first_block + header.blocks};
}

uint64_t BytesOf(const KvLayout& layout, const KvRange& range) {
  return range.blocks() * layout.BytesOf(static_cast<int32_t>(range.first_layer),
                                         static_cast<int32_t>(range.last_layer));
}

std::vector<KvRange> SentRanges(const KvLayout& layout, uint32_t tokens, const KvRange& range) {
  const KvRange passed = Passed(layout, tokens, range);
  if (passed.blocks() == 0) return {range};
  std::vector<KvRange> sent = LayerRuns(layout, passed, /*in_group=*/false);
  if (passed.last_block < range.last_block) {
    sent.push_back(range);
    sent.back().first_block = passed.last_block;
  }
  return sent;
}

std::vector<KvRange> UnsentRanges(const KvLayout& layout, uint32_t tokens, const KvRange& range) {
  const KvRange passed = Passed(layout, tokens, range);
  if (passed.blocks() == 0) return {};
  return LayerRuns(layout, passed, /*in_group=*/true);
}

HandoffCoverage::HandoffCoverage(uint32_t layers, uint32_t blocks)
    : layers_(layers), blocks_(blocks), present_(uint64_t{layers} * blocks, false) {}

bool HandoffCoverage::Contains(const KvRange& range) const {
  return range.first_layer < range.last_layer && range.last_layer <= layers_ &&
         range.first_block < range.last_block && range.last_block <= blocks_;
}

bool HandoffCoverage::Overlaps(const KvRange& range) const {
  PENSTOCK_CHECK(Contains(range));
  for (uint32_t layer = range.first_layer; layer < range.last_layer; ++layer) {
    const auto row = present_.begin() + static_cast<ptrdiff_t>(uint64_t{layer} * blocks_);
    const auto end = row + range.last_block;
    if (std::find(row + range.first_block, end, true) != end) return true;
  }
  return false;
}

void HandoffCoverage::Add(const KvRange& range) {
  PENSTOCK_CHECK(!Overlaps(range));
  for (uint32_t layer = range.first_layer; layer < range.last_layer; ++layer) {
    const auto row = present_.begin() + static_cast<ptrdiff_t>(uint64_t{layer} * blocks_);
    std::fill(row + range.first_block, row + range.last_block, true);
  }
  cells_ += range.cells();
}

uint32_t HandoffCoverage::complete_layers() const {
  uint32_t complete = 0;
  for (uint32_t layer = 0; layer < layers_; ++layer) {
    const auto row = present_.begin() + static_cast<ptrdiff_t>(uint64_t{layer} * blocks_);
    if (std::find(row, row + blocks_, false) == row + blocks_) ++complete;
  }
  return complete;
}

}  // namespace penstock
