#pragma once

#include <cstdint>

#include "kernels/bf16.h"

// The inner loops of the CPU kernels, one table of functions per Isa. Each works on one row or one
// tile and accumulates every output element in one fixed order.

namespace penstock {

enum class Isa;

// Rows of a tile of a product: enough independent chains to fill the pipelines, few enough that
// accumulators and operands stay in 32 registers.
inline constexpr int kTileRows = 12;
inline constexpr int kTileColumns = 32;  // == PackedMatrix::kPanel
// Few rows are as fast as weights arrive, and go down several panels at once: more streams for the
// memory, and more independent chains, so that a late line delays only one of them.
inline constexpr int kRowsByFour = 2;  // at most
inline constexpr int kRowsByTwo = 4;   // at most
// Positions of a tile of attention: tiles start at multiples of it, counted from position 0.
inline constexpr int kKvTile = 64;

enum class TileStore { kStore, kAdd, kSiluGate };

struct FinishTileArgs {
  const float* tile;  // [rows][kTileColumns]
  int rows;
  int columns;        // of the tile that exist, 1..kTileColumns
  const float* bias;  // [columns], or null
  float* output;      // of the tile's first element; kSiluGate writes columns / 2
  int64_t output_stride;
  TileStore mode;
};

// A tile and the panel of weights that is multiplied into it.
struct TileProduct {
  const Bf16* weights;  // [pairs][kTileColumns][2]
  float* tile;          // [rows][kTileColumns]
};

struct SoftmaxRowArgs {
  const float* scores[kKvTile / kTileColumns];  // [kTileColumns] each
  int first;                                    // columns in [first, last) are attended to
  int last;
  float scale;    // of the scores
  float* max;     // running maximum of the row, -infinity before its first tile
  float* sum;     // running sum of exp(score - max)
  void* weights;  // [kKvTile] activations, out: exp(score - max), 0 outside [first, last)
};

struct SimdOps {
  // Activations of products are float or Bf16, as the Isa has it. Both are kept in blocks
  // [inputs / 2][rows][2] of at most kTileRows rows.
  int activation_bytes;

  // Inputs [first, last), both even, of `rows` rows into the block that starts at `packed`.
  void (*pack_rows)(const float* input, int64_t stride, int rows, int64_t first, int64_t last,
                    void* packed);
  // tile[r][c] += sum over k of a[r][k] * b[c][k], ascending in k, for 2 * pairs inputs.
  // `a` is a slice of a block of `rows` rows, `b` [pairs][kTileColumns][2], tile
  // [rows][kTileColumns].
  void (*multiply_tile)(int rows, int64_t pairs, const void* a, const Bf16* b, float* tile);
  // The same for two panels side by side, and for four.
  void (*multiply_two)(int rows, int64_t pairs, const void* a, const TileProduct* products);
  void (*multiply_four)(int rows, int64_t pairs, const void* a, const TileProduct* products);
  // multiply_tile with `a` row-major [rows][kKvTile] and kKvTile inputs.
  void (*multiply_weights)(int rows, const void* a, const Bf16* b, float* tile);
  void (*finish_tile)(const FinishTileArgs& args);

  // y = x / rms(x) * weight; may alias.
  void (*rms_norm)(const float* x, const float* weight, int64_t size, float epsilon, float* y);
  // Rotates the pairs (x[i], x[i + half]).
  void (*rope)(float* x, const float* cosines, const float* sines, int64_t half);
  void (*to_bf16)(const float* x, int64_t size, Bf16* y);
  void (*to_float)(const Bf16* x, int64_t size, float* y);

  // rows[t] is the key of token t, `dims` a multiple of 8: into [kKvTile / 32][dims / 2][32][2].
  void (*pack_keys)(const Bf16* const* rows, int64_t dims, Bf16* panels);
  // rows[t] is the value of token t: into [dims / 32 rounded up][kKvTile / 2][32][2]. Columns that
  // do not exist are left alone.
  void (*pack_values)(const Bf16* const* rows, int64_t dims, Bf16* panels);
  // Updates max and sum, writes the weights, and returns exp(old max - new max).
  float (*softmax_row)(const SoftmaxRowArgs& args);
  // x *= factor
  void (*scale)(float* x, int64_t size, float factor);
};

const SimdOps& SimdFor(Isa isa);
const SimdOps& ActiveSimd();

}  // namespace penstock
