#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_rows.h"
#include "kernels/latents.h"

namespace penstock::cpu {
namespace {

constexpr int64_t kTokensPerAppend = 8;
constexpr int64_t kRowsPerProduct = 4 * kTileRows;  // of a task, which reads its matrix once
constexpr int kSideBySide = 4;                      // panels at once of few rows
constexpr int64_t kTileFloats = kTileRows * kTileColumns;

void AppendToken(const LatentAppendArgs& args, const SimdOps& simd, int64_t token) {
  const int64_t pairs = args.cosines.dim(1), query = args.queries.dim(1) / args.heads;
  const auto rotate = [&](float* end) {
    simd.rope(end - 2 * pairs, args.cosines.row(token), args.sines.row(token), pairs);
  };
  for (int32_t h = 0; h < args.heads; ++h) rotate(args.queries.row(token) + (h + 1) * query);
  float* latent = args.latents.row(token);
  rotate(latent + args.latents.dim(1));
  const KvSlot to = args.slots[token];
  StoreKvRow(args.kv, {.block = to.block, .layer = args.layer, .slot = to.slot}, latent);
}

// Rows [first, first + rows) of one head, at most kTileRows.
struct HeadBlock {
  int64_t head;
  int64_t first;
  int rows;
};

void StorePanel(const HeadProductsArgs& args, const SimdOps& simd, const HeadBlock& block,
                int64_t panel, const float* tile) {
  const int64_t column = panel * kTileColumns;
  const int64_t left = args.weights[block.head].outputs() - column;
  simd.finish_tile({.tile = tile,
                    .rows = block.rows,
                    .columns = static_cast<int>(std::min<int64_t>(kTileColumns, left)),
                    .bias = nullptr,
                    .output = args.output.row(block.first) + block.head * args.output_step + column,
                    .output_stride = args.output.dim(1),
                    .mode = TileStore::kStore});
}

// Multiplies panels [panel, panel + count), kSideBySide of them or one.
void MultiplyPanels(const HeadProductsArgs& args, const SimdOps& simd, const HeadBlock& block,
                    int64_t panel, int64_t count, const void* input) {
  alignas(64) float tiles[kSideBySide * kTileFloats];
  const PackedMatrix& weight = args.weights[block.head];
  std::fill_n(tiles, count * kTileFloats, 0.0f);
  TileProduct products[kSideBySide];
  for (int64_t n = 0; n < count; ++n) {
    products[n] = {weight.panel(panel + n), tiles + n * kTileFloats};
  }
  const int64_t pairs = weight.inputs() / 2;
  if (count == kSideBySide) {
    simd.multiply_four(block.rows, pairs, input, products);
  } else {
    simd.multiply_tile(block.rows, pairs, input, products[0].weights, tiles);
  }
  for (int64_t n = 0; n < count; ++n) {
    StorePanel(args, simd, block, panel + n, tiles + n * kTileFloats);
  }
}

void MultiplyBlock(const HeadProductsArgs& args, const SimdOps& simd, const HeadBlock& block) {
  alignas(64) std::byte packed[kTileRows * kHeadInputsMax * sizeof(float)];
  const PackedMatrix& weight = args.weights[block.head];
  simd.pack_rows(args.input.row(block.first) + block.head * args.input_step, args.input.dim(1),
                 block.rows, 0, weight.inputs(), packed);
  const int64_t at_once = block.rows <= kRowsByFour ? kSideBySide : 1;
  for (int64_t panel = 0; panel < weight.panels();) {
    const int64_t count = panel + at_once <= weight.panels() ? at_once : 1;
    MultiplyPanels(args, simd, block, panel, count, packed);
    panel += count;
  }
}

}  // namespace

void LatentAppend(const Exec& exec, const LatentAppendArgs& args) {
  const KvLayout& layout = args.kv.layout;
  PENSTOCK_CHECK(layout.HasLatents() && layout.dtype == KvDtype::kBf16);
  PENSTOCK_CHECK_EQ(args.latents.dim(1), layout.head_dim);
  PENSTOCK_CHECK_LE(2 * args.cosines.dim(1), layout.latent_rope_dim);
  const int64_t tokens = args.latents.dim(0);
  const SimdOps& simd = ActiveSimd();
  ParallelFor(exec, (tokens + kTokensPerAppend - 1) / kTokensPerAppend, [&](int64_t task, int) {
    const int64_t end = std::min(tokens, (task + 1) * kTokensPerAppend);
    for (int64_t t = task * kTokensPerAppend; t < end; ++t) AppendToken(args, simd, t);
  });
}

void HeadProducts(const Exec& exec, const HeadProductsArgs& args) {
  const int64_t rows = args.input.dim(0);
  PENSTOCK_CHECK_EQ(args.output.dim(0), rows);
  for (const PackedMatrix& weight : args.weights)
    PENSTOCK_CHECK_LE(weight.inputs(), kHeadInputsMax);
  const SimdOps& simd = ActiveSimd();
  const int64_t ranges = (rows + kRowsPerProduct - 1) / kRowsPerProduct;
  ParallelFor(exec, std::ssize(args.weights) * ranges, [&](int64_t task, int) {
    const int64_t begin = task % ranges * kRowsPerProduct;
    const int64_t end = std::min(rows, begin + kRowsPerProduct);
    for (int64_t first = begin; first < end; first += kTileRows) {
      const auto count = static_cast<int>(std::min<int64_t>(kTileRows, end - first));
      MultiplyBlock(args, simd, {.head = task / ranges, .first = first, .rows = count});
    }
  });
}

}  // namespace penstock::cpu
