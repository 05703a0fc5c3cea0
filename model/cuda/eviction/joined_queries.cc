#include "model/cuda/eviction/joined_queries.h"

#include <algorithm>

#include "base/check.h"

namespace penstock {

JoinedQueries::JoinedQueries(int ranks, int64_t rows, int64_t width)
    : part_width_(width), width_(ranks * width), rows_(static_cast<size_t>(rows * width_)) {}

void JoinedQueries::Put(int rank, View<const float, 2> queries, int64_t first, int64_t count) {
  PENSTOCK_CHECK_LE(first + count, queries.dim(0));
  PENSTOCK_CHECK_LE(queries.dim(0) * width_, std::ssize(rows_));
  for (int64_t row = first; row < first + count; ++row) {
    std::copy_n(queries.row(row), part_width_, rows_.begin() + row * width_ + rank * part_width_);
  }
}

}  // namespace penstock
