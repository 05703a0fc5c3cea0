#include <algorithm>

#include "kernels/cuda/decode_params.h"
#include "kernels/cuda/prefill_params.h"

namespace penstock::cuda {

DecodePlan PlanDecode(std::span<const int32_t> lengths, int32_t window) {
  constexpr int kSplitTiles = kSplitTokens / kTileTokens;
  DecodePlan plan;
  plan.split_counts.reserve(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int32_t length = lengths[i];
    const int32_t first = window > 0 && length > window ? length - window : 0;
    const int32_t tiles = (length + kTileTokens - 1) / kTileTokens;
    const int32_t first_tile = first / kTileTokens, first_split = first_tile / kSplitTiles;
    int32_t splits = 0;
    for (int32_t begin = first_split * kSplitTiles; begin < tiles; begin += kSplitTiles) {
      plan.items.push_back({.sequence = static_cast<int32_t>(i),
                            .split = splits++,
                            .tile_begin = std::max(begin, first_tile),
                            .tile_end = std::min(begin + kSplitTiles, tiles)});
    }
    plan.split_counts.push_back(splits);
    plan.max_splits = std::max(plan.max_splits, splits);
  }
  std::ranges::stable_sort(plan.items, [](const DecodeItem& a, const DecodeItem& b) {
    return a.tile_end - a.tile_begin > b.tile_end - b.tile_begin;
  });
  return plan;
}

std::vector<PrefillTile> PlanPrefill(std::span<const PrefillSequence> sequences, int32_t group) {
  std::vector<PrefillTile> tiles;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int32_t rows = sequences[i].rows * group;
    for (int32_t first = 0; first < rows; first += kPrefillTileRows) {
      tiles.push_back({.sequence = static_cast<int32_t>(i), .first = first});
    }
  }
  const auto last_position = [&](const PrefillTile& tile) {
    const PrefillSequence& s = sequences[tile.sequence];
    const int32_t row = std::min(tile.first + kPrefillTileRows, s.rows * group) - 1;
    return s.position + row / group;
  };
  std::ranges::stable_sort(tiles, [&](const PrefillTile& a, const PrefillTile& b) {
    return last_position(a) > last_position(b);
  });
  return tiles;
}

}  // namespace penstock::cuda
