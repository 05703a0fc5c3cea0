#pragma once

#include <cstdint>
#include <vector>

#include "kernels/view.h"

namespace penstock {

// The queries of one layer of a step of several GPUs ("ranks"), in host memory: each rank has those
// of its own heads, and they are joined in the order of heads. The ranks' threads may put theirs
// at once; the owner lets nobody read meanwhile.
class JoinedQueries {
 public:
  // For up to `rows` rows, of which each rank has `width` elements.
  JoinedQueries(int ranks, int64_t rows, int64_t width);

  // Copies rows [first, first + count) of a rank's `queries`, [rows, width].
  void Put(int rank, View<const float, 2> queries, int64_t first, int64_t count);
  // The first `rows` rows, [rows, ranks * width]; those that were not put have anything.
  View<const float, 2> first(int64_t rows) const { return {rows_.data(), {rows, width_}}; }

 private:
  const int64_t part_width_;  // of a rank
  const int64_t width_;       // of all ranks
  std::vector<float> rows_;
};

}  // namespace penstock
