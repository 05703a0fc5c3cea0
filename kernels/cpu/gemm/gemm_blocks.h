#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/simd.h"
#include "kernels/gemm.h"

// The parts that products of bf16 weights and of quantised weights share: the division of rows into
// blocks and of panels into tasks, and the store of a finished tile.

namespace penstock::gemm {

inline constexpr int64_t kTileFloats = kTileRows * kTileColumns;
inline constexpr int64_t kSliceInputs = 256;
inline constexpr int64_t kBlocksPerPass = 32;
inline constexpr int64_t kPanelsPerPass = 4;
inline constexpr int64_t kPanelsPerTask = 16;  // the maximum

// Divides rows into the fewest blocks of at most `rows_max` rows, all of nearly equal size: 13 rows
// become 7 and 6, not 12 and 1.
struct Blocks {
  explicit Blocks(int64_t total, int64_t rows_max = kTileRows)
      : rows(total), count((total + rows_max - 1) / rows_max) {}
  int64_t First(int64_t block) const { return rows * block / count; }
  int Rows(int64_t block) const { return static_cast<int>(First(block + 1) - First(block)); }
  int64_t rows;
  int64_t count;
};

// Adds the bias to a finished tile of a panel and a block and stores it as the product's mode says.
void FinishPanel(const GemmArgs& args, const SimdOps& simd, const Blocks& blocks, int64_t panel,
                 int64_t block, const float* tile);

// Returns the first panel of every task, and the end. Long tasks come first, because a thread that
// reads neighbouring panels keeps the prefetchers busy; short tasks come last, so that all threads
// end together. The shortest task has `min` panels.
std::vector<int64_t> CutTasks(int64_t panels, int threads, int64_t min);

// The products; arguments are checked already.
void MultiplyPacked(const Exec& exec, const GemmArgs& args, const PackedMatrix& weight);
// Multiply a section of args.weight whose first panel is panel `first_panel` of it: codes that are
// integers, and E4M3 codes.
void MultiplyQuantised(const Exec& exec, const GemmArgs& args, const QuantisedMatrix& weight,
                       int64_t first_panel);
void MultiplyE4m3(const Exec& exec, const GemmArgs& args, const QuantisedMatrix& weight,
                  int64_t first_panel);

}  // namespace penstock::gemm
