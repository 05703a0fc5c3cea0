#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "kernels/cpu/gemm/gemm_blocks.h"
#include "kernels/cpu/gemm/integer_ops.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"

// Products of quantised weights (integer_ops.h). Rows of the input become 16-bit integers once.
// A product of few rows is limited by memory bandwidth and reads codes directly, several panels
// side by side, and a second time from the cache if the rows are two blocks. A product of more rows
// unpacks a slice of a panel into the first-level cache and multiplies it with all blocks of a
// pass, in the blocking of gemm_packed.cc.

namespace penstock::gemm {
namespace {

static_assert(kSliceInputs % kRunInputs == 0);  // a slice begins with a run

constexpr int64_t kPieceInputs = 1024;  // inputs of a row that are quantised at once
// Smaller magnitudes count as zero: their reciprocal would overflow.
constexpr float kLeastMagnitude = 0x1p-100f;

struct QuantisedProduct {
  const GemmArgs& args;
  const QuantisedMatrix& weight;
  const SimdOps& simd;
  const IntegerOps& ops;
  Blocks blocks;
  PanelForm form;
  int64_t first_panel;  // of args.weight

  int16_t* Codes(int64_t block, int64_t first_input) const {
    return reinterpret_cast<int16_t*>(args.scratch->packed()) +
           blocks.First(block) * weight.padded() + first_input * blocks.Rows(block);
  }
  int32_t* Sums(int64_t block, int64_t first_input) const {
    return args.scratch->group_sums() + blocks.First(block) * weight.groups() +
           first_input / form.group * blocks.Rows(block);
  }
  int8_t* Planes(int64_t block) const {
    return reinterpret_cast<int8_t*>(args.scratch->packed()) +
           2 * blocks.First(block) * weight.padded();
  }
};

// The two factors of a row: integers are the row times `inverse`, the product is integers times
// `scale`.
struct RowScale {
  float scale;
  float inverse;
};

RowScale ScaleOf(float magnitude) {
  constexpr auto kMax = static_cast<float>(kActivationMax);
  if (!(magnitude < std::numeric_limits<float>::infinity())) {
    return {std::numeric_limits<float>::quiet_NaN(), 0};
  }
  if (magnitude < kLeastMagnitude) return {0, 0};
  return {magnitude / kMax, kMax / magnitude};
}

// Quantises positions [first, first + count) of a row; positions without an input become 0.
void QuantisePiece(const QuantisedProduct& product, const float* row, float inverse, int64_t first,
                   int64_t count, int16_t* codes) {
  const int64_t inputs = product.weight.inputs();
  const auto order = product.weight.order();
  if (inverse == 0) {
    std::fill_n(codes, count, int16_t{0});
    return;
  }
  if (order.empty()) {
    const int64_t present = std::clamp<int64_t>(inputs - first, 0, count);
    product.ops.quantise(row + first, present, inverse, codes);
    std::fill_n(codes + present, count - present, int16_t{0});
    return;
  }
  float gathered[kPieceInputs];
  for (int64_t i = 0; i < count; ++i) {
    const int32_t input = order[first + i];
    gathered[i] = input < 0 ? 0.0f : row[input];
  }
  product.ops.quantise(gathered, count, inverse, codes);
}

// Calls use(first, count, codes) with the integers of pieces of an input row, and stores its scale.
void QuantiseRow(const QuantisedProduct& product, int64_t row, const auto& use) {
  const float* values = product.args.input.row(row);
  const RowScale scale = ScaleOf(product.ops.magnitude(values, product.weight.inputs()));
  product.args.scratch->row_scales()[row] = scale.scale;
  alignas(64) int16_t codes[kPieceInputs];
  const int64_t padded = product.weight.padded();
  for (int64_t first = 0; first < padded; first += kPieceInputs) {
    const int64_t count = std::min(kPieceInputs, padded - first);
    QuantisePiece(product, values, scale.inverse, first, count, codes);
    use(first, count, codes);
  }
}

// Stores integers [inputs / 2][rows][2], the pairs of four inputs as IntegerOps::unpack orders
// them.
void StorePairs(const int16_t* codes, int64_t count, int64_t stride, int16_t* target) {
  for (int64_t i = 0; i < count; i += 4, target += 2 * stride) {
    target[0] = codes[i];
    target[1] = codes[i + 2];
    target[stride] = codes[i + 1];
    target[stride + 1] = codes[i + 3];
  }
}

// Stores the high and low bytes of integers, [inputs / 4][rows][2][4].
void StorePlanes(const int16_t* codes, int64_t count, int64_t stride, int8_t* target) {
  alignas(64) int8_t high[kPieceInputs], low[kPieceInputs];
  for (int64_t i = 0; i < count; ++i) {
    high[i] = static_cast<int8_t>((codes[i] + 128) >> 8);
    low[i] = static_cast<int8_t>(codes[i]);  // modulo 256: the rest in [-128, 127]
  }
  for (int64_t i = 0; i < count; i += 4, target += stride) {
    std::copy_n(high + i, 4, target);
    std::copy_n(low + i, 4, target + 4);
  }
}

void StoreSums(const int16_t* codes, int64_t count, int group, int rows, int32_t* sums) {
  for (int64_t i = 0; i < count; i += group, sums += rows) {
    int32_t sum = 0;
    for (int j = 0; j < group; ++j) sum += codes[i + j];
    *sums = sum;
  }
}

void QuantiseBlock(const QuantisedProduct& product, int64_t block) {
  const int64_t first_row = product.blocks.First(block);
  const int rows = product.blocks.Rows(block), group = product.form.group;
  for (int r = 0; r < rows; ++r) {
    QuantiseRow(product, first_row + r, [&](int64_t first, int64_t count, const int16_t* codes) {
      StorePairs(codes, count, 2 * rows, product.Codes(block, first) + 2 * r);
      if (!product.form.offsets) return;
      StoreSums(codes, count, group, rows, product.Sums(block, first) + r);
    });
  }
}

void QuantiseNarrow(const QuantisedProduct& product, int64_t block) {
  const int64_t first_row = product.blocks.First(block);
  const int rows = product.blocks.Rows(block), group = product.form.group;
  const bool planes = product.ops.takes_planes(product.form);
  for (int r = 0; r < rows; ++r) {
    QuantiseRow(product, first_row + r, [&](int64_t first, int64_t count, const int16_t* codes) {
      if (planes) {
        StorePlanes(codes, count, 8 * rows, product.Planes(block) + 2 * first * rows + 8 * r);
      } else {
        StorePairs(codes, count, 2 * rows, product.Codes(block, first) + 2 * r);
      }
      StoreSums(codes, count, group, rows, product.Sums(block, first) + r);
    });
  }
}

void FinishScaled(const QuantisedProduct& product, int64_t panel, int64_t block, float* tile) {
  const float* scales = product.args.scratch->row_scales() + product.blocks.First(block);
  for (int r = 0; r < product.blocks.Rows(block); ++r) {
    product.simd.scale(tile + r * kTileColumns, kTileColumns, scales[r]);
  }
  FinishPanel(product.args, product.simd, product.blocks, product.first_panel + panel, block, tile);
}

// Bytes before their use at which the codes of `panels` panels, which are read side by side, are
// asked for from memory. Farther is slower where several panels are read, and nearer is slower
// where the sums of a group take long to add up: with scales of two levels, and with several rows.
// Measured on Zen 4.
int64_t AheadOf(const PanelForm& form, int panels) {
  if (form.codes == Codes::kBytes) return 1024;
  if (panels < kPanelsPerPass) return 4096;
  return form.scale == ScaleType::kTwoLevel ? 2048 : 1024;
}

// Multiplies panels with all blocks. While a second block finds a panel in the cache, the panel
// after it comes from memory.
void MultiplyPanels(const QuantisedProduct& product, std::span<const int64_t> indexes,
                    float* tiles) {
  const int count = static_cast<int>(indexes.size());
  const std::byte* panels[kPanelsPerPass];
  for (int n = 0; n < count; ++n) panels[n] = product.weight.panel(indexes[n]);
  const int64_t panel_bytes = product.weight.panel_bytes();
  for (int64_t block = 0; block < product.blocks.count; ++block) {
    const int rows = product.blocks.Rows(block);
    product.ops.multiply_narrow({.rows = rows,
                                 .groups = product.weight.groups(),
                                 .planes = product.Planes(block),
                                 .sums = product.Sums(block, 0),
                                 .ahead = block == 0 ? AheadOf(product.form, count) : panel_bytes},
                                product.form, count, panels, tiles);
    for (int n = 0; n < count; ++n) {
      FinishScaled(product, indexes[n], block, tiles + n * rows * kTileColumns);
    }
  }
}

void MultiplyNarrow(const QuantisedProduct& product, int64_t first, int64_t last, float* tiles) {
  const int64_t rows = (product.blocks.rows + product.blocks.count - 1) / product.blocks.count;
  int64_t indexes[kPanelsPerPass];
  for (int64_t count = kPanelsPerPass / rows; count > 0; count /= 2) {
    const int64_t step = (last - first) / count;
    for (int64_t i = 0; i < step; ++i) {
      for (int64_t n = 0; n < count; ++n) indexes[n] = first + i + n * step;
      MultiplyPanels(product, {indexes, static_cast<size_t>(count)}, tiles);
    }
    first += step * count;
  }
}

// The parts of a slice (GemmScratch::slice).
UnpackedGroups UnpackedIn(std::byte* slice, bool offsets) {
  auto* weights = reinterpret_cast<int16_t*>(slice);
  auto* scales = reinterpret_cast<float*>(weights + kSliceInputs * kTileColumns);
  float* after = scales + kSliceInputs / kGroupMin * kTileColumns;
  return {.weights = weights, .scales = scales, .offsets = offsets ? after : nullptr};
}

// Multiplies panels [first, last) with blocks [first_block, last_block).
void MultiplyWidePass(const QuantisedProduct& product, int64_t first, int64_t last,
                      int64_t first_block, int64_t last_block, float* tiles, std::byte* slice) {
  const int64_t blocks = last_block - first_block, padded = product.weight.padded();
  const int group = product.form.group, run = group * product.form.run;
  const UnpackedGroups unpacked = UnpackedIn(slice, product.form.offsets);
  std::fill_n(tiles, (last - first) * blocks * kTileFloats, 0.0f);
  for (int64_t input = 0; input < padded; input += kSliceInputs) {
    const int64_t size = std::min(kSliceInputs, padded - input), groups = size / group;
    for (int64_t panel = first; panel < last; ++panel) {
      product.ops.unpack(product.form,
                         product.weight.panel(panel) + input / run * product.form.run_bytes, groups,
                         unpacked);
      float* tile = tiles + (panel - first) * blocks * kTileFloats;
      for (int64_t block = first_block; block < last_block; ++block, tile += kTileFloats) {
        product.ops.multiply_wide({.rows = product.blocks.Rows(block),
                                   .groups = groups,
                                   .pairs = group / 2,
                                   .input = product.Codes(block, input),
                                   .sums = product.Sums(block, input),
                                   .panel = unpacked,
                                   .tile = tile});
        if (input + size == padded) FinishScaled(product, panel, block, tile);
      }
    }
  }
}

void MultiplyWide(const QuantisedProduct& product, int64_t first, int64_t last, float* tiles,
                  std::byte* slice) {
  for (int64_t panel = first; panel < last; panel += kPanelsPerPass) {
    for (int64_t block = 0; block < product.blocks.count; block += kBlocksPerPass) {
      MultiplyWidePass(product, panel, std::min(last, panel + kPanelsPerPass), block,
                       std::min(product.blocks.count, block + kBlocksPerPass), tiles, slice);
    }
  }
}

}  // namespace

void MultiplyQuantised(const Exec& exec, const GemmArgs& args, const QuantisedMatrix& weight,
                       int64_t first_panel) {
  const IntegerOps& ops = ActiveIntegerOps();
  const int64_t rows = args.input.dim(0);
  const bool narrow = ops.multiply_narrow != nullptr && rows <= kNarrowBlocks * kNarrowRows;
  const QuantisedProduct product{.args = args,
                                 .weight = weight,
                                 .simd = ActiveSimd(),
                                 .ops = ops,
                                 .blocks = Blocks(rows, narrow ? kNarrowRows : kTileRows),
                                 .form = FormOf(weight.format()),
                                 .first_panel = first_panel};
  ParallelFor(exec, product.blocks.count, [&](int64_t block, int) {
    narrow ? QuantiseNarrow(product, block) : QuantiseBlock(product, block);
  });
  const std::vector<int64_t> cuts = CutTasks(weight.panels(), ThreadCount(exec), 2);
  ParallelFor(exec, static_cast<int64_t>(cuts.size()) - 1, [&](int64_t task, int thread) {
    if (narrow) {
      MultiplyNarrow(product, cuts[task], cuts[task + 1], args.scratch->tiles(thread));
    } else {
      MultiplyWide(product, cuts[task], cuts[task + 1], args.scratch->tiles(thread),
                   args.scratch->slice(thread));
    }
  });
}

}  // namespace penstock::gemm
