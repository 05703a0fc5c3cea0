#include <algorithm>

#include "kernels/cuda/attention_params.h"

namespace penstock::cuda {
namespace {

int32_t SplitsOf(int32_t tokens) { return (tokens + kSplitTokens - 1) / kSplitTokens; }

// The positions of the rows of sequences.
struct RowPositions {
  int32_t group = 0;
  std::span<const int32_t> given;  // as PlanAttention's

  // The last position of the rows [first, first + size) of a sequence.
  int32_t Last(const AttentionSequence& s, int32_t first, int32_t size) const {
    const int32_t token = (std::min(first + size, s.rows * group) - 1) / group;
    return given.empty() ? s.position + token : given[static_cast<size_t>(s.first_row + token)];
  }
};

// Adds narrow tiles to a plan, and ends a launch where the next tile has too many shares for it.
class NarrowTiles {
 public:
  NarrowTiles(const RowPositions& positions, int32_t launch_shares_max, AttentionPlan& plan)
      : positions_(positions), launch_shares_max_(launch_shares_max), plan_(plan) {}

  void Add(const AttentionSequence& s, int32_t sequence) {
    const int32_t all = s.rows * positions_.group;
    for (int32_t first = 0; first < all; first += kNarrowRows) {
      const int32_t splits = SplitsOf(positions_.Last(s, first, kNarrowRows) + 1);
      const int32_t rows = std::min(kNarrowRows, all - first);
      const int32_t shares = splits > 1 ? splits * rows : 0;
      if (shares > launch_shares_max_ - shares_) EndLaunch();
      const auto tile = static_cast<int32_t>(plan_.narrow.size()) - first_tile_;
      plan_.narrow.push_back(
          {.sequence = sequence, .first = first, .splits = splits, .first_share = shares_});
      for (int32_t split = 0; split < splits; ++split) plan_.items.push_back({tile, split});
      shares_ += shares;
      plan_.shares = std::max(plan_.shares, shares_);
    }
  }

 private:
  void EndLaunch() {
    if (shares_ == 0) return;
    const AttentionCounts counts = plan_.counts();
    plan_.launch_ends.push_back({0, counts.narrow, counts.items});  // wide tiles come last
    first_tile_ = counts.narrow;
    shares_ = 0;
  }

  const RowPositions& positions_;
  const int32_t launch_shares_max_;
  AttentionPlan& plan_;
  int32_t first_tile_ = 0, shares_ = 0;  // of the launch
};

}  // namespace

AttentionPlan PlanAttention(std::span<const AttentionSequence> sequences, int32_t group,
                            const TileRows& tiles, std::span<const int32_t> positions) {
  AttentionPlan plan;
  const RowPositions at{.group = group, .given = positions};
  NarrowTiles narrow(at, tiles.launch_shares_max, plan);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const AttentionSequence& s = sequences[i];
    const auto sequence = static_cast<int32_t>(i);
    const int64_t shares = int64_t{SplitsOf(s.position + s.rows)} * s.rows * group;
    if (s.rows * group <= tiles.narrow_max && plan.shares + shares <= tiles.shares_max) {
      narrow.Add(s, sequence);
      continue;
    }
    for (int32_t first = 0; first < s.rows * group; first += tiles.wide) {
      plan.wide.push_back({.sequence = sequence, .first = first});
    }
  }
  const auto last_position = [&](const AttentionTile& tile) {
    return at.Last(sequences[tile.sequence], tile.first, tiles.wide);
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
