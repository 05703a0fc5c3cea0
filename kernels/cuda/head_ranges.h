#pragma once

#include <cstddef>
#include <vector>

#include "kernels/paged_kv.h"

namespace penstock::cuda {

// A page whose heads are spread over several memories ("ranks"), equally many in each and in order:
// each rank's page is one of its own layout. What of such a page is where.

// The layout of one of `ranks`, which divide the heads.
KvLayout LayoutOfRank(const KvLayout& whole, int ranks);

// Bytes [offset, offset + bytes) of a rank's page, all in one piece there.
struct HeadRange {
  // Their parts: each in one piece in the whole page, too.
  struct Part {
    size_t at = 0;        // from `offset`
    size_t in_whole = 0;  // from where the whole's bytes were asked for
    size_t bytes = 0;
  };
  size_t offset = 0;
  size_t bytes = 0;
  std::vector<Part> parts;  // ascending, without gaps
};

// What of bytes [offset, offset + bytes) of a whole page is on `rank`, in as few ranges as may be:
// one, where it is of whole layers. What is behind the last layer is nowhere.
std::vector<HeadRange> RangesOfRank(const KvLayout& whole, int ranks, int rank, size_t offset,
                                    size_t bytes);

}  // namespace penstock::cuda
