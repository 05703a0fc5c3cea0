#include "kernels/library/gemm_plan.h"

#include <limits>

namespace penstock::cuda::library {
namespace {

// A tile's time beside that of the others, where all processors have one. Measured on an H200.
struct Cost {
  GemmTile tile;
  int time;
};
constexpr Cost kCosts[] = {{GemmTile::k64x64, 14},
                           {GemmTile::k128x64, 20},
                           {GemmTile::k128x128, 36},
                           {GemmTile::k128x256, 70}};
// Up to here the weight's way from memory takes the time, which the smallest tile hides best.
constexpr int32_t kFewRows = 32;
// From here on tiles are visited in bands, so that the rows of a band stay in the L2 cache.
constexpr int32_t kManyRows = 4096;
constexpr int32_t kBand = 8;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t Waves(GemmTile tile, const Weight& weight, int32_t rows, int32_t processors) {
  const GemmTileShape& shape = ShapeOf(tile);
  const int64_t tiles = CeilDivide(weight.outputs, shape.outputs) * CeilDivide(rows, shape.rows);
  return CeilDivide(tiles, processors);
}

}  // namespace

bool SupportsGemm(const Weight& weight) {
  return weight.outputs > 0 && weight.inputs > 0 && weight.outputs % 4 == 0 &&
         weight.inputs % 8 == 0;
}

GemmChoice ChooseGemm(const Weight& weight, int32_t rows, int32_t processors) {
  if (rows <= kFewRows) return {.tile = GemmTile::k64x16};
  GemmChoice choice{.swizzle = rows >= kManyRows ? kBand : 1};
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Cost& cost : kCosts) {
    const int64_t time = cost.time * Waves(cost.tile, weight, rows, processors);
    // Of tiles that take the same time, the larger one reads less.
    if (time > least) continue;
    choice.tile = cost.tile;
    least = time;
  }
  return choice;
}

}  // namespace penstock::cuda::library
