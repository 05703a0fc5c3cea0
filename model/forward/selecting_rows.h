#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/selection/known_bounds.h"
#include "model/forward/model_runner.h"

namespace penstock {

// The first layers attend to all pages, as published: their attention is spread wide.
inline constexpr int32_t kDenseLayers = 2;

// The rows of a step that attend to some of their pages (Quest), and the blocks whose bounds they
// need and nobody has computed. Used anew for each step, by one thread.
class SelectingRows {
 public:
  struct Row {
    int64_t row = 0;                   // of the batch
    std::span<const uint32_t> blocks;  // of all its pages
    int64_t keep = 0;                  // pages that it attends to
    int64_t slot = 0;                  // its own in these
    bool bounded = false;              // none of its pages' bounds is missing
  };
  struct Missing {
    uint32_t block = 0;
    bool stays = false;  // none of its tokens is a guess
    int64_t row = 0;     // the first that needs it
  };

  void Clear();
  // Adds the rows of a sequence, of which `first_row` is the first in the batch. Returns the number
  // of leading rows that do not select.
  int64_t Add(const SequenceStep& sequence, const PagedKv& kv, int64_t first_row,
              const KnownBounds& known);
  // Behind the last Add: each missing block is there once, in ascending order.
  void FinishAdding();
  // Remembers the bounds of blocks that stay. When they have been computed in all layers.
  void RememberIn(KnownBounds& known, const PagedKv& kv) const;

  bool any() const { return !rows_.empty(); }
  const std::vector<Row>& rows() const { return rows_; }
  const std::vector<Missing>& missing() const { return missing_; }

 private:
  std::vector<Row> rows_;
  std::vector<Missing> missing_;
};

}  // namespace penstock
