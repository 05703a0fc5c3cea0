#pragma once

#include <cstdint>

#include "kernels/paged_kv.h"

namespace penstock {

// The blocks of a pool, and the number of them that may have rows at one time (WindowRows).
struct KvRoom {
  int64_t blocks = 0;
  int64_t rows = 0;
  bool operator==(const KvRoom&) const = default;
};

// Divides `bytes` between the blocks and the rows of a model with a window group, for sequences of
// up to `longest` tokens that are computed in steps of at most `step` tokens.
//
// A sequence needs all of its blocks and the rows of its window: the longer it is, the fewer rows a
// block. Rows and blocks run out together for sequences whose length is the geometric mean of the
// window and `longest`. Sequences as short as the window then use the same share of the blocks as
// the longest use of the rows. There are rows for two sequences at least. Where that would
// make for fewer blocks, and in a model without a window group, there are as many rows as blocks.
KvRoom SplitKvMemory(const KvLayout& layout, uint64_t bytes, int64_t longest, int64_t step);

}  // namespace penstock
