#pragma once

#include <cstdint>
#include <vector>

namespace penstock::cuda {

enum class GemmKernel { kSkinny, kWide, kWideAddedUp, kChosen };

struct GemmCase {
  int32_t rows = 1;
  int32_t inputs = 256;
  int32_t outputs = 64;
  uint64_t seed = 1;
  GemmKernel kernel = GemmKernel::kSkinny;
};

struct GemmResult {
  double relative = 0;        // root mean square deviation from a double-precision product
  std::vector<float> values;  // [rows][outputs], slices added in order
};

// Row r of a larger case with the same seed is row r of a smaller one.
GemmResult RunGemm(const GemmCase& c);

}  // namespace penstock::cuda
