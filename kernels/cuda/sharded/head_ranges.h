#pragma once

#include <cstddef>
#include <vector>

#include "kernels/paged_kv.h"

namespace penstock::cuda {

// Tensor parallelism divides the heads of a page among the memories of several GPUs ("ranks"):
// equally many consecutive heads for each. A rank's page has a layout of its own. Pages of latents,
// which all heads of queries read, are whole on every rank. These functions map bytes of the whole
// page to bytes of the ranks' pages. Pure functions; any thread may call them.

// The layout of one rank's pages. `ranks` must divide the number of heads, unless the pages have
// latents.
KvLayout LayoutOfRank(const KvLayout& whole, int ranks);

// The place of a rank's heads in a layer of the whole page. The rank's layer has the codes of its
// heads, and then their scales. A second copy (KvLayout::span) has rows alone, which count as
// codes.
struct LayerPart {
  size_t codes_at = 0;   // in the whole layer
  size_t scales_at = 0;  // likewise
  size_t codes_bytes = 0;
  size_t scales_bytes = 0;
};
LayerPart LayerPartOf(const KvLayout& whole, int ranks, int rank, int32_t layer);

// A contiguous range of bytes, [offset, offset + bytes), of a rank's page.
struct HeadRange {
  // A part of the range that is contiguous in the whole page too.
  struct Part {
    size_t at = 0;        // relative to HeadRange::offset
    size_t in_whole = 0;  // relative to the requested offset in the whole page
    size_t bytes = 0;
  };
  size_t offset = 0;
  size_t bytes = 0;
  std::vector<Part> parts;  // in ascending order, without gaps
};

// Maps bytes [offset, offset + bytes) of a whole page to the ranges of `rank`'s page, in as few
// ranges as possible: one if the bytes are whole layers. Bytes beyond the last layer map to
// nothing.
std::vector<HeadRange> RangesOfRank(const KvLayout& whole, int ranks, int rank, size_t offset,
                                    size_t bytes);

// Stored layers first, first + step, and so on, which have one size, and lie at equal distances in
// the memory of one kind: in blocks, or in rows (PagedKv::rows).
struct LayerRun {
  int32_t first = 0;
  int32_t count = 0;
  int32_t step = 1;
  bool in_rows = false;
  bool operator==(const LayerRun&) const = default;
};

// Divides layers [first, last) of `kv` into as few runs as possible.
std::vector<LayerRun> RunsOfLayers(const PagedKv& kv, int32_t first, int32_t last);

}  // namespace penstock::cuda
