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

}  // namespace

// All heads of queries read a latent, so that every rank has the whole page.
KvLayout LayoutOfRank(const KvLayout& whole, int ranks) {
  if (whole.HasLatents()) return whole;
  PENSTOCK_CHECK_EQ(whole.kv_heads % ranks, 0);
  KvLayout layout = whole;
  layout.kv_heads /= ranks;
  return layout;
}

LayerPart LayerPartOf(const KvLayout& whole, int ranks, int rank) {
  const KvLayout own = LayoutOfRank(whole, ranks);
  constexpr auto kKeys = penstock::KvPlane::kKeys;
  const int32_t first_head = whole.HasLatents() ? 0 : rank * own.kv_heads;
  const size_t codes = own.ScalesAt(0, kKeys, 0);
  return {.codes_at = whole.CodesAt(first_head, kKeys, 0),
          .scales_at = whole.ScalesAt(first_head, kKeys, 0),
          .codes_bytes = codes,
          .scales_bytes = own.LayerBytes() - codes};
}

std::vector<HeadRange> RangesOfRank(const KvLayout& whole, int ranks, int rank, size_t offset,
                                    size_t bytes) {
  const LayerPart part = LayerPartOf(whole, ranks, rank);
  const size_t codes = part.codes_bytes, layer_bytes = codes + part.scales_bytes;
  std::vector<HeadRange> ranges;
  const size_t first = offset / whole.LayerBytes();
  const auto layers = static_cast<size_t>(whole.layers);
  for (size_t layer = first; layer < layers && layer * whole.LayerBytes() < offset + bytes;
       ++layer) {
    const size_t at = layer * whole.LayerBytes(), at_rank = layer * layer_bytes;
    const Piece pieces[] = {
        {.in_whole = at + part.codes_at, .in_rank = at_rank, .bytes = codes},
        {.in_whole = at + part.scales_at, .in_rank = at_rank + codes, .bytes = part.scales_bytes}};
    for (const Piece& piece : pieces) Append(Clip(piece, offset, bytes), offset, ranges);
  }
  return ranges;
}

}  // namespace penstock::cuda
