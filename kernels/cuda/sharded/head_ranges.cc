#include "kernels/cuda/sharded/head_ranges.h"

#include <algorithm>

#include "base/check.h"

namespace penstock::cuda {
namespace {

// The codes, or the scales, of one layer of a rank's page.
struct Piece {
  size_t in_whole = 0;  // offset from the start of the whole page
  size_t in_rank = 0;
  size_t bytes = 0;
};

void Append(const Piece& piece, size_t asked, std::vector<HeadRange>& ranges) {
  if (piece.bytes == 0) return;
  if (ranges.empty() || ranges.back().offset + ranges.back().bytes != piece.in_rank) {
    ranges.push_back({.offset = piece.in_rank});
  }
  HeadRange& range = ranges.back();
  range.parts.push_back(
      {.at = range.bytes, .in_whole = piece.in_whole - asked, .bytes = piece.bytes});
  range.bytes += piece.bytes;
}

// Returns the part of the piece in [offset, offset + bytes) of the whole page.
Piece Clip(Piece piece, size_t offset, size_t bytes) {
  const size_t begin = std::max(piece.in_whole, offset);
  const size_t end = std::min(piece.in_whole + piece.bytes, offset + bytes);
  if (begin >= end) return {};
  return {
      .in_whole = begin, .in_rank = piece.in_rank + (begin - piece.in_whole), .bytes = end - begin};
}

bool IsSecondCopy(const KvLayout& layout, int32_t layer) {
  return layout.span > 0 && layer % 2 == 1;
}

}  // namespace

// All heads of queries read a latent, so that every rank has the whole page.
KvLayout LayoutOfRank(const KvLayout& whole, int ranks) {
  if (whole.HasLatents()) return whole;
  PENSTOCK_CHECK_EQ(whole.kv_heads % ranks, 0);
  KvLayout layout = whole;
  layout.kv_heads /= ranks;
  return layout;
}

LayerPart LayerPartOf(const KvLayout& whole, int ranks, int rank, int32_t layer) {
  const KvLayout own = LayoutOfRank(whole, ranks);
  constexpr auto kKeys = penstock::KvPlane::kKeys;
  const int32_t first_head = whole.HasLatents() ? 0 : rank * own.kv_heads;
  if (IsSecondCopy(whole, layer)) {
    return {.codes_at = whole.RecentAt(first_head, kKeys, 0), .codes_bytes = own.RecentBytes()};
  }
  const size_t codes = own.ScalesAt(0, kKeys, 0);
  return {.codes_at = whole.CodesAt(first_head, kKeys, 0),
          .scales_at = whole.ScalesAt(first_head, kKeys, 0),
          .codes_bytes = codes,
          .scales_bytes = own.LayerBytes() - codes};
}

std::vector<HeadRange> RangesOfRank(const KvLayout& whole, int ranks, int rank, size_t offset,
                                    size_t bytes) {
  const KvLayout own = LayoutOfRank(whole, ranks);
  std::vector<HeadRange> ranges;
  for (int32_t layer = whole.LayerAt(offset);
       layer < whole.layers && whole.BytesBefore(layer) < offset + bytes; ++layer) {
    const LayerPart part = LayerPartOf(whole, ranks, rank, layer);
    const size_t at = whole.BytesBefore(layer), at_rank = own.BytesBefore(layer);
    const Piece pieces[] = {
        {.in_whole = at + part.codes_at, .in_rank = at_rank, .bytes = part.codes_bytes},
        {.in_whole = at + part.scales_at,
         .in_rank = at_rank + part.codes_bytes,
         .bytes = part.scales_bytes}};
    for (const Piece& piece : pieces) Append(Clip(piece, offset, bytes), offset, ranges);
  }
  return ranges;
}

std::vector<LayerRun> RunsOfLayers(const PagedKv& kv, int32_t first, int32_t last) {
  const int32_t step = kv.layout.Copies();
  std::vector<LayerRun> runs;
  for (int32_t start = first; start < std::min(first + step, last); ++start) {
    for (int32_t layer = start; layer < last; layer += step) {
      const bool in_rows = kv.rows != nullptr && kv.layout.group.Has(layer);
      if (layer == start || runs.back().in_rows != in_rows) {
        runs.push_back({.first = layer, .count = 0, .step = step, .in_rows = in_rows});
      }
      ++runs.back().count;
    }
  }
  return runs;
}

}  // namespace penstock::cuda
