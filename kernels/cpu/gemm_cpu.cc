#include <algorithm>
#include <vector>

#include "base/check.h"
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

constexpr int64_t kTileFloats = kTileRows * kTileColumns;
constexpr int64_t kSliceInputs = 256;
constexpr int64_t kBlocksPerPass = 32;
constexpr int64_t kPanelsPerPass = 4;
constexpr int64_t kPanelsPerTask = 16;  // the maximum
constexpr int64_t kPackInputs = 1024;   // inputs that one packing task handles

// Divides rows into blocks of nearly equal size: 13 rows become 7 and 6, not 12 and 1.
struct Blocks {
  explicit Blocks(int64_t total) : rows(total), count((total + kTileRows - 1) / kTileRows) {}
  int64_t First(int64_t block) const { return rows * block / count; }
  int Rows(int64_t block) const { return static_cast<int>(First(block + 1) - First(block)); }
  int64_t rows;
  int64_t count;
};

struct Product {
  const GemmArgs& args;
  const SimdOps& simd;
  Blocks blocks;
  int64_t inputs;

  // A single row that needs no rounding is used unpacked.
  bool InPlace() const { return blocks.rows == 1 && simd.activation_bytes == sizeof(float); }
  std::byte* Packed(int64_t block, int64_t first_input) const {
    const int64_t element = blocks.First(block) * inputs + first_input * blocks.Rows(block);
    return reinterpret_cast<std::byte*>(args.scratch->packed()) + element * simd.activation_bytes;
  }
  const void* Slice(int64_t block, int64_t first_input) const {
    if (InPlace()) return args.input.data + first_input;
    return Packed(block, first_input);
  }
};

void Pack(const Exec& exec, const Product& product) {
  if (product.InPlace()) return;
  const int64_t pieces = (product.inputs + kPackInputs - 1) / kPackInputs;
  ParallelFor(exec, product.blocks.count * pieces, [&](int64_t task, int) {
    const int64_t block = task / pieces, first = task % pieces * kPackInputs;
    product.simd.pack_rows(product.args.input.row(product.blocks.First(block)), product.inputs,
                           product.blocks.Rows(block), first,
                           std::min(product.inputs, first + kPackInputs), product.Packed(block, 0));
  });
}

void Finish(const Product& product, int64_t panel, int64_t block, const float* tile) {
  const GemmArgs& args = product.args;
  const int64_t column = panel * kTileColumns;
  const bool gated = args.mode == GemmOutput::kSiluGate;
  product.simd.finish_tile(
      {.tile = tile,
       .rows = product.blocks.Rows(block),
       .columns =
           static_cast<int>(std::min<int64_t>(kTileColumns, args.weight->outputs() - column)),
       .bias = args.bias.data == nullptr ? nullptr : args.bias.data + column,
       .output = args.output.row(product.blocks.First(block)) + (gated ? column / 2 : column),
       .output_stride = args.output.dim(1),
       .mode = gated                           ? TileStore::kSiluGate
               : args.mode == GemmOutput::kAdd ? TileStore::kAdd
                                               : TileStore::kStore});
}

// Multiplies `count` panels (1, 2 or 4), `step` panels apart, with the only block. Nothing is read
// twice, so nothing needs to stay in a cache.
void MultiplySideBySide(const Product& product, int64_t first, int64_t step, int count,
                        float* tiles) {
  std::fill_n(tiles, count * kTileFloats, 0.0f);
  TileProduct products[kPanelsPerPass];
  for (int n = 0; n < count; ++n) {
    products[n] = {product.args.weight->panel(first + n * step), tiles + n * kTileFloats};
  }
  const int rows = product.blocks.Rows(0);
  const int64_t pairs = product.inputs / 2;
  const void* input = product.Slice(0, 0);
  if (count == 4) {
    product.simd.multiply_four(rows, pairs, input, products);
  } else if (count == 2) {
    product.simd.multiply_two(rows, pairs, input, products);
  } else {
    product.simd.multiply_tile(rows, pairs, input, products[0].weights, tiles);
  }
  for (int n = 0; n < count; ++n) Finish(product, first + n * step, 0, products[n].tile);
}

int PanelsAtOnce(int64_t rows) { return rows <= kRowsByFour ? 4 : rows <= kRowsByTwo ? 2 : 1; }

// The minimum panels per task. The last tasks are shorter than the widest pass, so that no thread
// waits long for another.
int64_t LeastPanels(int64_t rows) { return std::min(PanelsAtOnce(rows), 2); }

// Processes as many panels side by side as the number of rows allows.
void MultiplyOneBlock(const Product& product, int64_t first, int64_t last, float* tiles) {
  for (int count = PanelsAtOnce(product.blocks.rows); count > 0; count /= 2) {
    const int64_t part = (last - first) / count;
    for (int64_t i = 0; i < part; ++i) MultiplySideBySide(product, first + i, part, count, tiles);
    first += part * count;
  }
}

// Multiplies panels [first, last) with the blocks from first_block on of one pass.
void MultiplyPass(const Product& product, int64_t first, int64_t last, int64_t first_block,
                  int64_t last_block, float* tiles) {
  const int64_t blocks = last_block - first_block;
  std::fill_n(tiles, (last - first) * blocks * kTileFloats, 0.0f);
  for (int64_t input = 0; input < product.inputs; input += kSliceInputs) {
    const int64_t size = std::min(kSliceInputs, product.inputs - input);
    for (int64_t panel = first; panel < last; ++panel) {
      const Bf16* weight = product.args.weight->panel(panel) + input * kTileColumns;
      float* tile = tiles + (panel - first) * blocks * kTileFloats;
      for (int64_t block = first_block; block < last_block; ++block, tile += kTileFloats) {
        product.simd.multiply_tile(product.blocks.Rows(block), size / 2,
                                   product.Slice(block, input), weight, tile);
        if (input + size == product.inputs) Finish(product, panel, block, tile);
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

// Returns the first panel of every task, and the end. Long tasks come first, because a thread that
// reads neighbouring panels keeps the prefetchers busy; short tasks come last, so that all threads
// end together. The shortest task has `min` panels.
std::vector<int64_t> CutTasks(int64_t panels, int threads, int64_t min) {
  std::vector<int64_t> cuts = {0};
  while (cuts.back() < panels) {
    const int64_t left = panels - cuts.back();
    const int64_t share =
        std::clamp<int64_t>(left / (2 * threads) / min * min, min, kPanelsPerTask);
    cuts.push_back(cuts.back() + std::min(left, share));
  }
  return cuts;
}

}  // namespace

GemmScratch::GemmScratch(int64_t max_rows, int64_t max_inputs, int threads)
    : max_rows_(max_rows), max_inputs_(max_inputs) {
  const int64_t blocks = std::min(Blocks(max_rows).count, kBlocksPerPass);
  tile_floats_ = kPanelsPerPass * blocks * kTileFloats;
  packed_ = Buffer(static_cast<size_t>(max_rows * max_inputs) * sizeof(float));
  tiles_ = Buffer(static_cast<size_t>(tile_floats_ * threads) * sizeof(float));
}

void cpu::Gemm(const Exec& exec, const GemmArgs& args) {
  const int64_t rows = args.input.dim(0);
  if (rows == 0) return;
  PENSTOCK_CHECK_EQ(args.input.dim(1), args.weight->inputs());
  PENSTOCK_CHECK_EQ(args.output.dim(0), rows);
  PENSTOCK_CHECK_EQ(args.output.dim(1) * (args.mode == GemmOutput::kSiluGate ? 2 : 1),
                    args.weight->outputs());
  PENSTOCK_CHECK_LE(rows, args.scratch->max_rows());
  PENSTOCK_CHECK_LE(args.input.dim(1), args.scratch->max_inputs());
  const Product product{
      .args = args, .simd = ActiveSimd(), .blocks = Blocks(rows), .inputs = args.input.dim(1)};
  Pack(exec, product);
  const std::vector<int64_t> cuts =
      CutTasks(args.weight->panels(), ThreadCount(exec), LeastPanels(rows));
  ParallelFor(exec, static_cast<int64_t>(cuts.size()) - 1, [&](int64_t task, int thread) {
    MultiplyPanels(product, cuts[task], cuts[task + 1], args.scratch->tiles(thread));
  });
}

}  // namespace penstock
