#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/gemm/gemm_blocks.h"
#include "kernels/cpu/gemm/packed_rows.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/gemm.h"

// Blocked matrix product with packed operands (Goto and van de Geijn, "Anatomy of High-Performance
// Matrix Multiplication", 2008) around SimdOps::multiply_tile. Rows are divided into blocks of at
// most kTileRows, which are packed once. A task multiplies some panels of the weight with all
// blocks. The inputs are divided into slices, so that a slice of a panel stays in the first-level
// cache and a slice of the packed rows in the second. Between slices the accumulators are kept in
// memory unchanged, so that no division changes the order in which an element is summed.

namespace penstock {
namespace {

using gemm::Blocks;
using gemm::CutTasks;
using gemm::FinishPanel;
using gemm::kBlocksPerPass;
using gemm::kPanelsPerPass;
using gemm::kSliceInputs;
using gemm::kTileFloats;
using gemm::LeastPanels;
using gemm::PackedRows;
using gemm::PackRows;
using gemm::PanelsAtOnce;
using gemm::SideBySide;

struct Product {
  const GemmArgs& args;
  const PackedMatrix& weight;
  const SimdOps& simd;
  const PackedRows& rows;
  const Blocks& blocks;
  int64_t inputs;
};

// Multiplies `count` panels (1, 2 or 4), `step` panels apart, with the only block. Nothing is read
// twice, so nothing needs to stay in a cache.
void MultiplySideBySide(const Product& product, int64_t first, int64_t step, int count,
                        float* tiles) {
  std::fill_n(tiles, count * kTileFloats, 0.0f);
  TileProduct products[kPanelsPerPass];
  for (int n = 0; n < count; ++n) {
    products[n] = {product.weight.panel(first + n * step), tiles + n * kTileFloats};
  }
  const int rows = product.blocks.Rows(0);
  const int64_t pairs = product.inputs / 2;
  const void* input = product.rows.Slice(0, 0);
  if (count == 4) {
    product.simd.multiply_four(rows, pairs, input, products);
  } else if (count == 2) {
    product.simd.multiply_two(rows, pairs, input, products);
  } else {
    product.simd.multiply_tile(rows, pairs, input, products[0].weights, tiles);
  }
  for (int n = 0; n < count; ++n)
    FinishPanel(product.args, product.simd, product.blocks, first + n * step, 0, products[n].tile);
}

// Processes as many panels side by side as the number of rows allows.
void MultiplyOneBlock(const Product& product, int64_t first, int64_t last, float* tiles) {
  SideBySide(first, last, PanelsAtOnce(product.blocks.rows),
             [&](int64_t from, int64_t step, int count) {
               MultiplySideBySide(product, from, step, count, tiles);
             });
}

// Multiplies panels [first, last) with the blocks from first_block on of one pass.
void MultiplyPass(const Product& product, int64_t first, int64_t last, int64_t first_block,
                  int64_t last_block, float* tiles) {
  const int64_t blocks = last_block - first_block;
  std::fill_n(tiles, (last - first) * blocks * kTileFloats, 0.0f);
  for (int64_t input = 0; input < product.inputs; input += kSliceInputs) {
    const int64_t size = std::min(kSliceInputs, product.inputs - input);
    for (int64_t panel = first; panel < last; ++panel) {
      const Bf16* weight = product.weight.panel(panel) + input * kTileColumns;
      float* tile = tiles + (panel - first) * blocks * kTileFloats;
      for (int64_t block = first_block; block < last_block; ++block, tile += kTileFloats) {
        product.simd.multiply_tile(product.blocks.Rows(block), size / 2,
                                   product.rows.Slice(block, input), weight, tile);
        if (input + size == product.inputs)
          FinishPanel(product.args, product.simd, product.blocks, panel, block, tile);
      }
    }
  }
}

void MultiplyPanels(const Product& product, int64_t first, int64_t last, float* tiles) {
  if (product.blocks.count == 1) return MultiplyOneBlock(product, first, last, tiles);
  for (int64_t panel = first; panel < last; panel += kPanelsPerPass) {
    for (int64_t block = 0; block < product.blocks.count; block += kBlocksPerPass) {
      MultiplyPass(product, panel, std::min(last, panel + kPanelsPerPass), block,
                   std::min(product.blocks.count, block + kBlocksPerPass), tiles);
    }
  }
}

}  // namespace

void gemm::MultiplyPacked(const Exec& exec, const GemmArgs& args, const PackedMatrix& weight) {
  const PackedRows rows(args, ActiveSimd());
  const Product product{.args = args,
                        .weight = weight,
                        .simd = rows.simd,
                        .rows = rows,
                        .blocks = rows.blocks,
                        .inputs = args.input.dim(1)};
  PackRows(exec, rows);
  const std::vector<int64_t> cuts =
      CutTasks(weight.panels(), ThreadCount(exec), LeastPanels(product.blocks.rows));
  ParallelFor(exec, static_cast<int64_t>(cuts.size()) - 1, [&](int64_t task, int thread) {
    MultiplyPanels(product, cuts[task], cuts[task + 1], args.scratch->tiles(thread));
  });
}

}  // namespace penstock
