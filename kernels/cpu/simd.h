#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bf16.h"

// The inner loops of the CPU kernels: one table of functions per Isa. Each function works on one
// row or one tile and accumulates every output element in one fixed order.
//
// This room, kernels/cpu, implements the operations of kernels/ on x86 cores, with one file per
// instruction set, and the thread pool that they run on. It may use base/ and kernels/ only. It
// does not know CUDA, models or requests.

namespace penstock {

enum class Isa;

// Rows of a product's tile: enough independent chains to fill the pipelines, and few enough that
// accumulators and operands fit in 32 registers.
inline constexpr int kTileRows = 12;
inline constexpr int kTileColumns = 32;  // == PackedMatrix::kPanel
// A product of few rows is limited by memory bandwidth. It therefore reads several panels at once:
// more memory streams, and more independent chains, so that a late cache line delays only one of
// them.
inline constexpr int kRowsByFour = 2;  // most rows for four panels at once
inline constexpr int kRowsByTwo = 4;   // most rows for two panels at once
// Positions of an attention tile. Tiles start at multiples of it, counted from position 0.
inline constexpr int kKvTile = 64;

enum class TileStore { kStore, kAdd, kSiluGate, kGeluGate, kClampedGate, kGelu, kGeluTanh };

struct FinishTileArgs {
  const float* tile;  // [rows][kTileColumns]
  int rows;
  int columns;        // existing columns of the tile, 1 .. kTileColumns
  const float* bias;  // [columns], or null
  float* output;      // first element of the tile; gates write columns / 2
  int64_t output_stride;
  TileStore mode;
  float limit;  // of kClampedGate
};

// A tile and the panel of weights that it is multiplied with.
struct TileProduct {
  const Bf16* weights;  // [pairs][kTileColumns][2]
  float* tile;          // [rows][kTileColumns]
};

struct SoftmaxRowArgs {
  const float* scores[kKvTile / kTileColumns];  // [kTileColumns] each
  // The row attends to columns [first, last).
  int first;
  int last;
  float scale;    // factor of the scores
  float cap;      // then scores become cap * tanh(score / cap); 0: no cap
  float* max;     // running maximum of the row, -infinity before its first tile
  float* sum;     // running sum of exp(score - max)
  void* weights;  // out, [kKvTile] activations: exp(score - max); 0 outside [first, last)
};

struct LayerNormWeights {
  const float* weight;
  const float* bias;
  float epsilon;
};

struct SimdOps {
  // Bytes of an activation: float or Bf16, depending on the Isa. Products take activations in
  // blocks [inputs / 2][rows][2] of at most kTileRows rows.
  int activation_bytes;

  // Packs inputs [first, last), both even, of `rows` rows into the block that starts at `packed`.
  // `stride` is in elements.
  void (*pack_rows)(const float* input, int64_t stride, int rows, int64_t first, int64_t last,
                    void* packed);
  // tile[r][c] += sum over k of a[r][k] * b[c][k], ascending in k, for 2 * pairs inputs. `a` is a
  // slice of a block of `rows` rows, `b` is [pairs][kTileColumns][2], and `tile` is
  // [rows][kTileColumns].
  void (*multiply_tile)(int rows, int64_t pairs, const void* a, const Bf16* b, float* tile);
  // multiply_tile for two, and for four, panels side by side.
  void (*multiply_two)(int rows, int64_t pairs, const void* a, const TileProduct* products);
  void (*multiply_four)(int rows, int64_t pairs, const void* a, const TileProduct* products);
  // multiply_tile with `a` row-major [rows][kKvTile] and kKvTile inputs.
  void (*multiply_weights)(int rows, const void* a, const Bf16* b, float* tile);
  // Unpacks words of four E4M3 codes, [words][kTileColumns][4] as QuantisedMatrix stores them, to
  // the numbers they stand for, [2 * words][kTileColumns][2]. Exact; no code is NaN.
  void (*expand_e4m3)(const std::byte* codes, int64_t words, Bf16* numbers);
  // tile[r][c] = fma(sums[r][c], scales[c], tile[r][c]), all [rows][kTileColumns].
  void (*add_scaled_tile)(int rows, const float* sums, const float* scales, float* tile);
  // Adds the bias to a finished tile and stores it as `mode` says.
  void (*finish_tile)(const FinishTileArgs& args);

  // y = x / rms(x) * weight, over `size` elements. y may alias x.
  void (*rms_norm)(const float* x, const float* weight, int64_t size, float epsilon, float* y);
  // y = (x - mean) / deviation * weight + bias. y may alias x.
  void (*layer_norm)(const float* x, const LayerNormWeights& norm, int64_t size, float* y);
  // Rotates the pairs (x[i], x[i + half]) in place.
  void (*rope)(float* x, const float* cosines, const float* sines, int64_t half);
  // Conversions of `size` elements; to_bf16 rounds to nearest, ties to even.
  void (*to_bf16)(const float* x, int64_t size, Bf16* y);
  void (*to_float)(const Bf16* x, int64_t size, float* y);

  // Packs keys: rows[t] is the key of token t, and `dims` is a multiple of 8. Panels are [kKvTile /
  // 32][dims / 2][32][2].
  void (*pack_keys)(const Bf16* const* rows, int64_t dims, Bf16* panels);
  // Packs values: rows[t] is the value of token t. Panels are [dims / 32 rounded up][kKvTile /
  // 2][32][2]. Columns beyond dims are not written.
  void (*pack_values)(const Bf16* const* rows, int64_t dims, Bf16* panels);
  // One row of the online softmax: updates max and sum, writes the weights, and returns exp(old max
  // - new max), the factor for the row's accumulated output.
  float (*softmax_row)(const SoftmaxRowArgs& args);
  // x *= factor; size is a multiple of kTileColumns
  void (*scale)(float* x, int64_t size, float factor);
  // y += x * factor, and x = cap * tanh(x / cap), of any size
  void (*add_scaled)(const float* x, float factor, int64_t size, float* y);
  void (*soft_cap)(float* x, int64_t size, float cap);
  // The sum over i of x[i] * y[i], in one order.
  float (*dot)(const float* x, const float* y, int64_t size);
};

// The table for an instruction set, and the table for ActiveIsa().
const SimdOps& SimdFor(Isa isa);
const SimdOps& ActiveSimd();

}  // namespace penstock
