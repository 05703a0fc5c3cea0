#include <algorithm>
#include <vector>

#include "kernels/cpu/gemm/gemm_blocks.h"
#include "kernels/cpu/gemm/packed_rows.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"

// Products of E4M3 weights. A slice of codes is expanded to bf16, which holds every E4M3 number
// exactly, in the first-level cache, and multiplied as bf16 weights are. The chain of a group of
// inputs starts at zero, and its sum is added to the output with the group's scale:
//     product = sum over g of (scale[g] * sum over i in g of number[i] * activation[i]),
// groups in ascending order, one multiply-add each. Both ways to multiply do exactly that.

namespace penstock::gemm {
namespace {

struct E4m3Product {
  const GemmArgs& args;
  const QuantisedMatrix& weight;
  const PackedRows& rows;
  int64_t first_panel;  // of args.weight

  // Inputs of group g; the last group may have fewer than the others.
  int64_t GroupInputs(int64_t g) const {
    return std::min<int64_t>(weight.format().group, rows.inputs - g * weight.format().group);
  }
  const std::byte* Group(int64_t panel, int64_t g) const {
    return weight.panel(panel) + g * weight.format().run_bytes();
  }
  const float* Scales(int64_t panel, int64_t g) const {
    return reinterpret_cast<const float*>(Group(panel, g));
  }
  const std::byte* Codes(int64_t panel, int64_t g, int64_t input) const {
    return Group(panel, g) + weight.format().head_bytes() + input * kTileColumns;
  }
  void Finish(int64_t panel, int64_t block, const float* tile) const {
    FinishPanel(args, rows.simd, rows.blocks, first_panel + panel, block, tile);
  }
};

// Panels side by side, and where their parts are.
struct E4m3Side {
  int64_t first;  // panel
  int64_t step;
  int count;     // 1, 2 or 4
  Bf16* slice;   // [count][kSideInputs][kTileColumns]
  float* tiles;  // [count], kTileFloats apart
};
// Inputs that panels side by side expand at once: four such slices fit in the cache together.
constexpr int64_t kSideInputs = kSliceInputs / kPanelsPerPass;

// Adds inputs [input, input + size) of group g to the sums of all panels, [count] kTileFloats
// apart.
void AddSideSlice(const E4m3Product& product, const E4m3Side& side, int64_t g, int64_t input,
                  int64_t size, float* sums) {
  const SimdOps& simd = product.rows.simd;
  TileProduct products[kPanelsPerPass];
  for (int n = 0; n < side.count; ++n) {
    Bf16* numbers = side.slice + n * kSideInputs * kTileColumns;
    simd.expand_e4m3(product.Codes(side.first + n * side.step, g, input), (size + 3) / 4, numbers);
    products[n] = {numbers, sums + n * kTileFloats};
  }
  const int rows = product.rows.blocks.Rows(0);
  const void* a = product.rows.Slice(0, g * product.weight.format().group + input);
  if (side.count == 4) {
    simd.multiply_four(rows, size / 2, a, products);
  } else if (side.count == 2) {
    simd.multiply_two(rows, size / 2, a, products);
  } else {
    simd.multiply_tile(rows, size / 2, a, products[0].weights, sums);
  }
}

// Multiplies panels side by side with the only block.
void MultiplySide(const E4m3Product& product, const E4m3Side& side) {
  alignas(64) float sums[kPanelsPerPass * kTileFloats];
  const int rows = product.rows.blocks.Rows(0);
  std::fill_n(side.tiles, side.count * kTileFloats, 0.0f);
  for (int64_t g = 0; g < product.weight.groups(); ++g) {
    for (int n = 0; n < side.count; ++n) {
      std::fill_n(sums + n * kTileFloats, rows * kTileColumns, 0.0f);
    }
    const int64_t inputs = product.GroupInputs(g);
    for (int64_t input = 0; input < inputs; input += kSideInputs) {
      AddSideSlice(product, side, g, input, std::min(kSideInputs, inputs - input), sums);
    }
    for (int n = 0; n < side.count; ++n) {
      product.rows.simd.add_scaled_tile(rows, sums + n * kTileFloats,
                                        product.Scales(side.first + n * side.step, g),
                                        side.tiles + n * kTileFloats);
    }
  }
  for (int n = 0; n < side.count; ++n) {
    product.Finish(side.first + n * side.step, 0, side.tiles + n * kTileFloats);
  }
}

// Some panels and blocks, whose tiles are kept in memory from group to group.
struct E4m3Pass {
  int64_t first, last;              // panels
  int64_t first_block, last_block;  // of rows
  Bf16* slice;                      // [inputs of a group][kTileColumns]
  float* tiles;                     // [panels][blocks], kTileFloats apart
};

// Adds group g of a panel, which is expanded once, to the tiles of all blocks.
void AddGroup(const E4m3Product& product, const E4m3Pass& pass, int64_t panel, int64_t g) {
  alignas(64) float sums[kTileFloats];
  const SimdOps& simd = product.rows.simd;
  const int64_t inputs = product.GroupInputs(g);
  simd.expand_e4m3(product.Codes(panel, g, 0), (inputs + 3) / 4, pass.slice);
  float* tile =
      pass.tiles + (panel - pass.first) * (pass.last_block - pass.first_block) * kTileFloats;
  for (int64_t block = pass.first_block; block < pass.last_block; ++block, tile += kTileFloats) {
    const int rows = product.rows.blocks.Rows(block);
    std::fill_n(sums, rows * kTileColumns, 0.0f);
    simd.multiply_tile(rows, inputs / 2,
                       product.rows.Slice(block, g * product.weight.format().group), pass.slice,
                       sums);
    simd.add_scaled_tile(rows, sums, product.Scales(panel, g), tile);
    if (g + 1 == product.weight.groups()) product.Finish(panel, block, tile);
  }
}

void MultiplyPass(const E4m3Product& product, const E4m3Pass& pass) {
  const int64_t tiles = (pass.last - pass.first) * (pass.last_block - pass.first_block);
  std::fill_n(pass.tiles, tiles * kTileFloats, 0.0f);
  for (int64_t g = 0; g < product.weight.groups(); ++g) {
    for (int64_t panel = pass.first; panel < pass.last; ++panel) AddGroup(product, pass, panel, g);
  }
}

void MultiplyPanels(const E4m3Product& product, int64_t first, int64_t last, Bf16* slice,
                    float* tiles) {
  const Blocks& blocks = product.rows.blocks;
  if (blocks.count == 1) {
    SideBySide(first, last, PanelsAtOnce(blocks.rows), [&](int64_t from, int64_t step, int count) {
      MultiplySide(product, {from, step, count, slice, tiles});
    });
    return;
  }
  for (int64_t panel = first; panel < last; panel += kPanelsPerPass) {
    for (int64_t block = 0; block < blocks.count; block += kBlocksPerPass) {
      MultiplyPass(product, {panel, std::min(last, panel + kPanelsPerPass), block,
                             std::min(blocks.count, block + kBlocksPerPass), slice, tiles});
    }
  }
}

}  // namespace

void MultiplyE4m3(const Exec& exec, const GemmArgs& args, const QuantisedMatrix& weight,
                  int64_t first_panel) {
  const PackedRows rows(args, ActiveSimd());
  PackRows(exec, rows);
  const E4m3Product product{args, weight, rows, first_panel};
  const std::vector<int64_t> cuts =
      CutTasks(weight.panels(), ThreadCount(exec), LeastPanels(rows.blocks.rows));
  ParallelFor(exec, static_cast<int64_t>(cuts.size()) - 1, [&](int64_t task, int thread) {
    MultiplyPanels(product, cuts[task], cuts[task + 1],
                   reinterpret_cast<Bf16*>(args.scratch->slice(thread)),
                   args.scratch->tiles(thread));
  });
}

}  // namespace penstock::gemm
