#pragma once

// Attention over pages with a span (KvPageFormat): a row reads the tokens of its own span in bf16,
// and those of earlier spans in codes. A tile lies in one span, so a row reads each tile once; a
// block whose rows are of several spans reads some tiles in both forms. In each split, the tiles of
// codes come first: they are before those in bf16 for every row, so that a row adds its tiles in
// ascending order.

#include "kernels/cuda/device/attention/narrow_attention.cuh"
#include "kernels/cuda/device/attention/wide_attention.cuh"

namespace penstock::cuda {

template <KvCode kKeys, KvCode kValues, int kDim, bool kCentred = false>
using WideSpanShape = AttentionShape<kKeys, kValues, kDim, true, true, true, kCentred>;
template <KvCode kKeys, KvCode kValues, int kDim, bool kCentred = false>
using NarrowSpanShape = AttentionShape<kKeys, kValues, kDim, false, true, true, kCentred>;

PENSTOCK_DEVICE int Least(int a, int b) { return a < b ? a : b; }

template <class Shape>
struct SpanBlock : AttentionBlock<Shape> {
  using Base = AttentionBlock<Shape>;
  using Base::kRowTiles;
  using Base::kScoreTiles;
  using Base::kTokens;
  using Recent = PlaneTile<KvCode::kBf16, Shape::kDim, kTokens, Shape::kThreads>;
  static_assert(Shape::kCodes && Shape::kRecentStages == 2);

  // Tiles from the first on that some row reads in bf16, and up to the last that some row reads in
  // codes. Base::tile_end is the end of those that Fetch may read ahead.
  int recent_begin, code_end;
  int last_tile;

  PENSTOCK_DEVICE SpanBlock(const AttentionParams& params, AttentionTile work)
      : Base(params, work) {
    recent_begin = SpanOf(this->first_position) / kTokens;
    code_end = SpanOf(this->last_position) / kTokens;
  }

  // The first position of a span.
  PENSTOCK_DEVICE int SpanOf(int position) const { return position / this->p.span * this->p.span; }
  PENSTOCK_DEVICE int LastTile() const { return last_tile; }

  // Calls removes(token, position, span) for each score, with its row's position and the first
  // position of that one's span.
  template <class Removes>
  PENSTOCK_DEVICE void RemoveScores(int n, const Removes& removes) {
    PENSTOCK_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      PENSTOCK_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int position = this->PositionOf(m, r), span = SpanOf(position);
        PENSTOCK_UNROLL
        for (int j = 0; j < kScoreTiles; ++j) {
          PENSTOCK_UNROLL
          for (int e = 0; e < 2; ++e) {
            const int token = n * kTokens + j * 8 + this->member * 2 + e;
            if (removes(token, position, span)) this->scores[m][j][2 * r + e] = -INFINITY;
          }
        }
      }
    }
  }
  // Rows of a tile's own span do not read its codes.
  PENSTOCK_DEVICE void MaskCodes(int n) {
    if (n < recent_begin) return;
    RemoveScores(n, [](int token, int, int span) { return token >= span; });
  }
  // Rows of later spans do not read it in bf16.
  PENSTOCK_DEVICE void MaskRecent(int n) {
    if (n >= code_end && (n + 1) * kTokens - 1 <= this->first_position) return;
    RemoveScores(
        n, [](int token, int position, int span) { return token < span || token > position; });
  }

  PENSTOCK_DEVICE uint8_t* RecentKeys(int stage) const {
    return SharedMemory() + Shape::kQueryBytes + stage * Shape::kRecentStageBytes;
  }
  PENSTOCK_DEVICE uint8_t* RecentValues(int stage) const {
    return RecentKeys(stage) + kTokens * Shape::kRow;
  }
  PENSTOCK_DEVICE KvSource RecentSource() const {
    return {this->p.recent, this->p.recent_tables + this->tile.sequence * this->p.table_stride,
            this->kv_head, this->sequence.position + this->sequence.rows};
  }

  // Base::Fetch of a tile in bf16.
  PENSTOCK_DEVICE void FetchRecent(int n, int stage, int end) {
    const KvSource from = RecentSource();
    const TilePages<kTokens> here = this->pages;
    this->pages.Load(from, (n + 1) * kTokens);
    const KvPlanes& recent = this->p.recent;
    if (n < end) Recent::Fetch(from, recent.keys, here, n * kTokens, RecentKeys(stage));
    CommitCopies();
    if (n < end) Recent::Fetch(from, recent.values, here, n * kTokens, RecentValues(stage));
    CommitCopies();
  }

  // Tiles in bf16, which are used where they arrived.
  PENSTOCK_DEVICE void RecentTiles(int begin, int end) {
    SyncBlock();  // all threads are done with the last tile of codes
    this->pages.Load(RecentSource(), begin * kTokens);
    FetchRecent(begin, 0, end);
    PENSTOCK_NO_UNROLL
    for (int n = begin, stage = 0; n < end; ++n, stage ^= 1) {
      WaitCopies<1>();
      SyncBlock();  // and all threads are done with the other stage
      FetchRecent(n + 1, stage ^ 1, end);
      this->MultiplyKeys(RecentKeys(stage));
      MaskRecent(n);
      this->WeighRows();
      WaitCopies<2>();
      SyncBlock();
      this->MultiplyValues(RecentValues(stage));
    }
  }

  // Starts the copies of codes from tile `n` on, up to `end`.
  PENSTOCK_DEVICE void StartCodes(int n, int end) {
    this->tile_end = Least(end, code_end);
    this->pages.Load(this->Source(), n * kTokens);
    PENSTOCK_UNROLL
    for (int s = 0; s < Shape::kStages - 1; ++s) this->Fetch(n + s, s);
  }

  // As Base::Tiles. The codes of all splits without tiles in bf16 are read in one go.
  template <class EndSplit>
  PENSTOCK_DEVICE void Tiles(const EndSplit& end_split) {
    constexpr int kSplit = Shape::kTilesOfSplit;
    const int begin = this->tile_begin, end = this->tile_end;
    const int both = recent_begin / kSplit * kSplit;  // the first tile of those splits
    const auto split_end = [&](int n) { return Least(end, (n / kSplit + 1) * kSplit); };
    last_tile = end - 1;
    this->FetchQueries();
    CommitCopies();
    StartCodes(begin, begin < both ? Least(end, both) : split_end(begin));
    WaitCopies<2 * (Shape::kStages - 1)>();
    SyncBlock();
    this->KeepQueries();
    int stage = 0;
    PENSTOCK_NO_UNROLL
    for (int first = begin; first < end;) {
      const int last = split_end(first);
      if (first > begin && first >= both) {
        SyncBlock();  // all threads are done with the last tile
        StartCodes(first, last);
        stage = 0;
      }
      PENSTOCK_NO_UNROLL
      for (int n = first; n < Least(last, code_end); ++n) {
        this->ScoreCodes(n, stage);
        MaskCodes(n);
        this->WeighRows();
        this->MultiplyValues(this->ConvertedValues());
        stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
      }
      if (last > recent_begin) RecentTiles(first > recent_begin ? first : recent_begin, last);
      end_split(last - 1);
      first = last;
    }
    WaitCopies<0>();
  }
};

// Grid: tiles x KV heads.
template <KvCode kKeys, KvCode kValues, int kDim>
__global__ void __launch_bounds__(WideSpanShape<kKeys, kValues, kDim>::kThreads)
    WideSpanKernel(const __grid_constant__ AttentionParams p) {
  const AttentionTile tile = p.wide[BlockX()];
  if (tile.sequence < 0) return;  // padding
  WideBlock<WideSpanShape<kKeys, kValues, kDim>, SpanBlock> block(p, tile);
  block.Run();
}

// Grid: items x KV heads.
template <KvCode kKeys, KvCode kValues, int kDim>
__global__ void __launch_bounds__(NarrowSpanShape<kKeys, kValues, kDim>::kThreads)
    NarrowSpanKernel(const __grid_constant__ AttentionParams p) {
  const SplitItem item = p.items[BlockX()];
  if (item.tile < 0) return;  // padding
  NarrowBlock<NarrowSpanShape<kKeys, kValues, kDim>, SpanBlock> block(p, p.narrow[item.tile]);
  block.Run(item.split);
}

// The same of pages with centred keys.
template <KvCode kKeys, KvCode kValues, int kDim>
__global__ void __launch_bounds__(WideSpanShape<kKeys, kValues, kDim, true>::kThreads)
    WideCentredKernel(const __grid_constant__ AttentionParams p) {
  const AttentionTile tile = p.wide[BlockX()];
  if (tile.sequence < 0) return;  // padding
  WideBlock<WideSpanShape<kKeys, kValues, kDim, true>, SpanBlock> block(p, tile);
  block.Run();
}
template <KvCode kKeys, KvCode kValues, int kDim>
__global__ void __launch_bounds__(NarrowSpanShape<kKeys, kValues, kDim, true>::kThreads)
    NarrowCentredKernel(const __grid_constant__ AttentionParams p) {
  const SplitItem item = p.items[BlockX()];
  if (item.tile < 0) return;  // padding
  NarrowBlock<NarrowSpanShape<kKeys, kValues, kDim, true>, SpanBlock> block(p, p.narrow[item.tile]);
  block.Run(item.split);
}

template <class Shape>
LaunchShape SpanGridOf(int x, const AttentionParams& params) {
  return {.x = x,
          .y = params.kv.kv_heads,
          .threads = Shape::kThreads,
          .shared_bytes = Shape::kSharedBytes};
}

}  // namespace penstock::cuda
