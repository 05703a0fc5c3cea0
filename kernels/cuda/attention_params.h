#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cuda/kv_planes.h"

namespace penstock::cuda {

// Sequences are split every kSplitTokens tokens, counted from position 0. A constant, because the
// splits are part of the arithmetic: each is summed by itself, and their sums are merged in
// ascending order. So the bits of a row depend on its sequence and position alone.
constexpr int kSplitTokens = 512;
// Rows of a tile. A row is one query head of one token.
constexpr int kWideRows = 128;
constexpr int kNarrowRows = 16;
// Sequences with at most so many rows in a step are computed in narrow tiles.
constexpr int kNarrowRowsMax = 64;

// The queries of one sequence: rows [first_row, first_row + rows) of the batch, at positions from
// `position` on, or at AttentionParams::positions. The pages hold all position + rows tokens,
// including those of these rows.
struct AttentionSequence {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t position = 0;
};

// Rows of a sequence, from `first` of its rows * group. A negative sequence marks padding.
//
// A wide tile is the work of one block per KV head, which walks all splits. A narrow tile has one
// block for each split, so that few rows of a long sequence keep the whole GPU busy.
struct AttentionTile {
  int32_t sequence = -1;
  int32_t first = 0;
  int32_t splits = 0;       // of a narrow tile
  int32_t first_share = 0;  // of a narrow tile: where the sums of its first split are
};

// One split of a narrow tile: the work of one block per KV head.
struct SplitItem {
  int32_t tile = -1;  // counted from the launch's first narrow tile; negative: padding
  int32_t split = 0;
};

// The sizes of the arrays of a launch, or of a plan.
struct AttentionCounts {
  int32_t wide = 0, narrow = 0, items = 0;
};

struct AttentionPlan {
  std::vector<AttentionTile> wide;  // longest history first
  std::vector<AttentionTile> narrow;
  std::vector<SplitItem> items;  // of `narrow`
  // The arrays' sizes at the ends of all launches but the last. The launches use the same scratch
  // memory one behind the other.
  std::vector<AttentionCounts> launch_ends;
  int32_t shares = 0;  // partial sums of a launch's narrow tiles: one for each row and split

  AttentionCounts counts() const {
    return {static_cast<int32_t>(wide.size()), static_cast<int32_t>(narrow.size()),
            static_cast<int32_t>(items.size())};
  }
};

// The rows of a kernel's wide tiles, and the most rows of a sequence that has narrow ones.
struct TileRows {
  int32_t wide = kWideRows;
  int32_t narrow_max = kNarrowRowsMax;
  // The most shares of a step: sequences that would need more have wide tiles.
  int32_t shares_max = std::numeric_limits<int32_t>::max();
  // The most shares of a launch that has more than one narrow tile.
  int32_t launch_shares_max = std::numeric_limits<int32_t>::max();
};

// Plans a step; `group` is the number of query heads per KV head. `positions`: those of all rows of
// the batch, if some sequence's are not consecutive (AttentionParams).
AttentionPlan PlanAttention(std::span<const AttentionSequence> sequences, int32_t group,
                            const TileRows& tiles = {}, std::span<const int32_t> positions = {});

// The bytes of scratch memory of a plan: for wide tiles, and for narrow ones.
size_t WideScratchBytes(size_t wide_tiles, int32_t kv_heads, int32_t head_dim);
size_t NarrowScratchBytes(int32_t shares, int32_t kv_heads, int32_t head_dim);

// Arguments of Attention. All pointers are to device memory; strides are in elements.
struct AttentionParams {
  const Bf16* queries = nullptr;  // [rows][heads][head_dim]
  int64_t query_stride = 0;       // from one row to the next
  Bf16* output = nullptr;         // [rows][heads][head_dim]
  int64_t output_stride = 0;
  KvPlanes kv;
  const uint32_t* tables = nullptr;  // page ids, [sequences][table_stride]
  int64_t table_stride = 0;
  // If not 0, every KV head has a table of its own: [sequences][kv_heads][head_table_stride]. The
  // positions of such a sequence are slots in these tables. For narrow tiles only.
  int32_t head_table_stride = 0;
  const AttentionSequence* sequences = nullptr;
  // Of the batch's rows, ascending in each sequence, whose last one is at position + rows - 1.
  // Null: each sequence's are consecutive.
  const int32_t* positions = nullptr;
  const AttentionTile* wide = nullptr;
  const AttentionTile* narrow = nullptr;
  const SplitItem* items = nullptr;
  float* wide_scratch = nullptr;    // of WideScratchBytes; unused by sequences of one split
  float* narrow_scratch = nullptr;  // of NarrowScratchBytes; likewise
  int32_t group = 0;                // query heads per KV head
  int32_t window = 0;               // as in AttentionArgs
  float scale_log2 = 0;             // factor of the scores times log2(e)
  // Scores become cap * tanh(score / cap) (Gemma 2). Then scale_log2 is cap * log2(e), and this is
  // 2 * log2(e) / cap times the factor of the scores; 0: no cap.
  float cap_factor = 0;
  const float* sinks = nullptr;  // [heads]: a score without a value of each row; null: none
  // Tokens of a span (KvPageFormat), a multiple of 64; 0: none. A query reads the tokens of its own
  // span in `recent`, in bf16, and those before in `kv`. Then there is no window, no cap, no sinks.
  int32_t span = 0;
  KvPlanes recent = {};
  const uint32_t* recent_tables = nullptr;  // page ids in `recent`, as `tables`
  // With centred keys (KvPageFormat), which need a span: the score of a key in `kv` is the sum of
  // the row's query times the key and its centre query times the position's angles.
  const Bf16* centre_queries = nullptr;  // as `queries`; null: keys are whole
  const Bf16* angles = nullptr;          // of all positions, by AngleAt
};

// Calls launch(params, counts) for each launch of the plan, in their order.
template <class Launch>
void ForLaunches(const AttentionPlan& plan, AttentionParams params, const Launch& launch) {
  AttentionCounts begin;
  for (const AttentionCounts& end : plan.launch_ends) {
    launch(params, {end.wide - begin.wide, end.narrow - begin.narrow, end.items - begin.items});
    params.wide += end.wide - begin.wide;
    params.narrow += end.narrow - begin.narrow;
    params.items += end.items - begin.items;
    begin = end;
  }
  const AttentionCounts end = plan.counts();
  launch(params, {end.wide - begin.wide, end.narrow - begin.narrow, end.items - begin.items});
}

// A sequence has more than one split only if its table has room for it.
inline bool HasSplits(const AttentionParams& params) {
  const int64_t pages =
      params.head_table_stride > 0 ? params.head_table_stride : params.table_stride;
  return pages << params.kv.page_log2 > kSplitTokens;
}

}  // namespace penstock::cuda
