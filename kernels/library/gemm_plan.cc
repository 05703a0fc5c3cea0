#include "kernels/library/gemm_plan.h"

namespace penstock::cuda::library {
namespace {

int64_t Tiles(GemmTile tile, const Weight& weight, int32_t rows) {
  const GemmTileShape& shape = ShapeOf(tile);
  return int64_t{(weight.outputs + shape.outputs - 1) / shape.outputs} *
         ((rows + shape.rows - 1) / shape.rows);
}

}  // namespace

bool SupportsGemm(const Weight& weight) {
  return weight.outputs > 0 && weight.inputs > 0 && weight.outputs % 4 == 0 &&
         weight.inputs % 8 == 0;
}

GemmChoice ChooseGemm(const Weight& weight, int32_t rows, int32_t processors) {
  using enum GemmTile;
  if (rows <= 16) {
    return {.tile = Tiles(k128x16, weight, rows) < processors ? k64x16 : k128x16};
  }
  if (rows <= 64) return {.tile = k128x64};
  if (rows <= 128) return {.tile = k128x128};
  const bool many = Tiles(k128x256, weight, rows) >= processors;
  return {.tile = many ? k128x256 : k128x128, .swizzle = 8};
}

}  // namespace penstock::cuda::library
