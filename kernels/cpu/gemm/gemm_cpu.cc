#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/gemm/gemm_blocks.h"
#include "kernels/cpu/gemm/integer_ops.h"
#include "kernels/gemm.h"

namespace penstock {
namespace {

// Inputs in whole groups of every size.
int64_t PaddedInputs(int64_t inputs) { return (inputs + kGroupMax - 1) / kGroupMax * kGroupMax; }

// A slice of a panel as unpack stores it: kSliceInputs inputs of 32 outputs, and their scales and
// offsets.
constexpr int64_t kSliceBytes =
    gemm::kSliceInputs * kTileColumns * static_cast<int64_t>(sizeof(int16_t)) +
    2 * gemm::kSliceInputs / kGroupMin * kTileColumns * static_cast<int64_t>(sizeof(float));

}  // namespace

GemmScratch::GemmScratch(int64_t max_rows, int64_t max_inputs, int threads)
    : max_rows_(max_rows), max_inputs_(max_inputs) {
  const int64_t blocks = std::min(gemm::Blocks(max_rows).count, gemm::kBlocksPerPass);
  const int64_t padded = PaddedInputs(max_inputs);
  tile_floats_ = gemm::kPanelsPerPass * blocks * gemm::kTileFloats;
  packed_ = Buffer(static_cast<size_t>(max_rows * padded) * sizeof(float));
  tiles_ = Buffer(static_cast<size_t>(tile_floats_ * threads) * sizeof(float));
  row_scales_ = Buffer(static_cast<size_t>(max_rows) * sizeof(float));
  group_sums_ = Buffer(static_cast<size_t>(max_rows * padded / kGroupMin) * sizeof(int32_t));
  slices_ = Buffer(static_cast<size_t>(kSliceBytes * threads));
}

std::byte* GemmScratch::slice(int thread) const {
  return slices_.as<std::byte>() + thread * kSliceBytes;
}

void gemm::FinishPanel(const GemmArgs& args, const SimdOps& simd, const Blocks& blocks,
                       int64_t panel, int64_t block, const float* tile) {
  const int64_t column = panel * kTileColumns;
  constexpr TileStore kStores[] = {
      TileStore::kStore,       TileStore::kAdd,  TileStore::kSiluGate, TileStore::kGeluGate,
      TileStore::kClampedGate, TileStore::kGelu, TileStore::kGeluTanh};
  const bool gated = IsGate(args.mode);
  simd.finish_tile({.tile = tile,
                    .rows = blocks.Rows(block),
                    .columns = static_cast<int>(
                        std::min<int64_t>(kTileColumns, args.weight->outputs() - column)),
                    .bias = args.bias.data == nullptr ? nullptr : args.bias.data + column,
                    .output = args.output.row(blocks.First(block)) + (gated ? column / 2 : column),
                    .output_stride = args.output.dim(1),
                    .mode = kStores[static_cast<size_t>(args.mode)],
                    .limit = args.limit});
}

std::vector<int64_t> gemm::CutTasks(int64_t panels, int threads, int64_t min) {
  std::vector<int64_t> cuts = {0};
  while (cuts.back() < panels) {
    const int64_t left = panels - cuts.back();
    const int64_t share =
        std::clamp<int64_t>(left / (2 * threads) / min * min, min, kPanelsPerTask);
    cuts.push_back(cuts.back() + std::min(left, share));
  }
  return cuts;
}

void cpu::Gemm(const Exec& exec, const GemmArgs& args) {
  const int64_t rows = args.input.dim(0);
  if (rows == 0) return;
  PENSTOCK_CHECK_EQ(args.input.dim(1), args.weight->inputs());
  PENSTOCK_CHECK_EQ(args.output.dim(0), rows);
  PENSTOCK_CHECK_EQ(args.output.dim(1) * (IsGate(args.mode) ? 2 : 1), args.weight->outputs());
  PENSTOCK_CHECK_LE(rows, args.scratch->max_rows());
  PENSTOCK_CHECK_LE(args.input.dim(1), args.scratch->max_inputs());
  if (const PackedMatrix* weight = args.weight->packed()) {
    return gemm::MultiplyPacked(exec, args, *weight);
  }
  PENSTOCK_CHECK(args.weight->stored() == nullptr);
  int64_t first_panel = 0;
  for (const QuantisedMatrix& section : args.weight->quantised()) {
    const auto multiply = section.format().e4m3() ? gemm::MultiplyE4m3 : gemm::MultiplyQuantised;
    multiply(exec, args, section, first_panel);
    first_panel += section.panels();
  }
}

}  // namespace penstock
