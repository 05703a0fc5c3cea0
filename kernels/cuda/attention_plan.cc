#include <algorithm>

#include "kernels/cuda/attention_params.h"

namespace penstock::cuda {
namespace {

int32_t SplitsOf(int32_t tokens) { return (tokens + kSplitTokens - 1) / kSplitTokens; }

// The last position of the rows [first, first + size) of a sequence.
int32_t LastPosition(const AttentionSequence& s, int32_t first, int32_t size, int32_t group) {
  const int32_t end = std::min(first + size, s.rows * group);
  return s.position + (end - 1) / group;
}

void AddNarrow(const AttentionSequence& s, int32_t sequence, int32_t group, AttentionPlan& plan) {
  for (int32_t first = 0; first < s.rows * group; first += kNarrowRows) {
    const int32_t splits = SplitsOf(LastPosition(s, first, kNarrowRows, group) + 1);
    const auto tile = static_cast<int32_t>(plan.narrow.size());
    plan.narrow.push_back(
        {.sequence = sequence, .first = first, .splits = splits, .first_share = plan.shares});
    for (int32_t split = 0; split < splits; ++split) plan.items.push_back({tile, split});
    if (splits > 1) plan.shares += splits * std::min(kNarrowRows, s.rows * group - first);
  }
}

}  // namespace

AttentionPlan PlanAttention(std::span<const AttentionSequence> sequences, int32_t group,
                            const TileRows& tiles) {
  AttentionPlan plan;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const AttentionSequence& s = sequences[i];
    const auto sequence = static_cast<int32_t>(i);
    const int64_t shares = int64_t{SplitsOf(s.position + s.rows)} * s.rows * group;
    if (s.rows * group <= tiles.narrow_max && plan.shares + shares <= tiles.shares_max) {
      AddNarrow(s, sequence, group, plan);
      continue;
    }
    for (int32_t first = 0; first < s.rows * group; first += tiles.wide) {
      plan.wide.push_back({.sequence = sequence, .first = first});
    }
  }
  const auto last_position = [&](const AttentionTile& tile) {
    return LastPosition(sequences[tile.sequence], tile.first, tiles.wide, group);
  };
  std::ranges::stable_sort(plan.wide, [&](const AttentionTile& a, const AttentionTile& b) {
    return last_position(a) > last_position(b);
  });
  return plan;
}

// A wide tile has its rows' sums, and for each lane the maxima and sums of its rows.
size_t WideScratchBytes(size_t wide_tiles, int32_t kv_heads, int32_t head_dim) {
  return wide_tiles * kv_heads * kWideRows * (head_dim + 8) * sizeof(float);
}

size_t NarrowScratchBytes(int32_t shares, int32_t kv_heads, int32_t head_dim) {
  return size_t{1} * shares * kv_heads * (head_dim + 2) * sizeof(float);
}

}  // namespace penstock::cuda
