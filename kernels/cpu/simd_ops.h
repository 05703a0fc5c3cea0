#pragma once

// The row operations as templates over a vector type V. Only simd_<isa>.cc include this file, each
// with its own compiler flags. Every function is a template over a V of an unnamed namespace, and
// none calls an inline function of the standard library: the linker can therefore never pick a
// function compiled for a newer machine for an older one.

#include "kernels/cpu/simd.h"

// The compiler keeps accumulators in registers only if it unrolls their loops early.
#if defined(__clang__)
#define PENSTOCK_UNROLL _Pragma("unroll")
#else
#define PENSTOCK_UNROLL _Pragma("GCC unroll 16")
#endif

namespace penstock::simd {

// exp(x) within 2 ulp: Cody and Waite's range reduction to 2^n * e^r, and the Taylor polynomial of
// degree 6. Returns 0 below -87, also for -infinity. x is at most 88.
template <class V>
typename V::Reg Exp(typename V::Reg x) {
  using Reg = typename V::Reg;
  const Reg low = V::Set(-87.0f);
  const Reg clamped = V::Min(V::Max(x, low), V::Set(88.0f));
  const Reg n = V::Round(V::Mul(clamped, V::Set(1.44269504f)));
  Reg r = V::Fma(n, V::Set(-0.693145752f), clamped);  // ln 2 in two parts; n * the first is exact.
  r = V::Fma(n, V::Set(-1.42860677e-6f), r);
  Reg p = V::Set(1.0f / 720);
  p = V::Fma(p, r, V::Set(1.0f / 120));
  p = V::Fma(p, r, V::Set(1.0f / 24));
  p = V::Fma(p, r, V::Set(1.0f / 6));
  p = V::Fma(p, r, V::Set(0.5f));
  p = V::Fma(p, r, V::Set(1.0f));
  p = V::Fma(p, r, V::Set(1.0f));
  return V::ZeroWhereLess(x, low, V::TimesPowerOf2(p, n));
}

template <class V>
void RmsNorm(const float* x, const float* weight, int64_t size, float epsilon, float* y) {
  constexpr int64_t kLanes = V::kLanes;
  const int64_t whole = size / kLanes * kLanes;
  const int tail = static_cast<int>(size - whole);
  typename V::Reg sum = V::Set(0.0f);
  for (int64_t i = 0; i < whole; i += kLanes) {
    const auto value = V::Load(x + i);
    sum = V::Fma(value, value, sum);
  }
  if (tail > 0) {
    const auto value = V::LoadPart(x + whole, tail);
    sum = V::Fma(value, value, sum);
  }
  const float mean = V::Sum(sum) / static_cast<float>(size);
  const auto scale = V::Set(1.0f / __builtin_sqrtf(mean + epsilon));
  for (int64_t i = 0; i < whole; i += kLanes) {
    V::Store(y + i, V::Mul(V::Mul(V::Load(x + i), scale), V::Load(weight + i)));
  }
  if (tail > 0) {
    const auto scaled = V::Mul(V::LoadPart(x + whole, tail), scale);
    V::StorePart(y + whole, tail, V::Mul(scaled, V::LoadPart(weight + whole, tail)));
  }
}

template <class V>
void LayerNorm(const float* x, const LayerNormWeights& norm, int64_t size, float* y) {
  const auto count = [&](int64_t i) {
    return size - i < V::kLanes ? static_cast<int>(size - i) : V::kLanes;
  };
  typename V::Reg sum = V::Set(0.0f);
  for (int64_t i = 0; i < size; i += V::kLanes) sum = V::Add(sum, V::LoadPart(x + i, count(i)));
  const float mean = V::Sum(sum) / static_cast<float>(size);
  float squares = 0;
  typename V::Reg wide = V::Set(0.0f);
  int64_t whole = 0;
  for (; whole + V::kLanes <= size; whole += V::kLanes) {
    const auto off = V::Sub(V::Load(x + whole), V::Set(mean));
    wide = V::Fma(off, off, wide);
  }
  for (int64_t i = whole; i < size; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const float variance = (V::Sum(wide) + squares) / static_cast<float>(size);
  const auto scale = V::Set(1.0f / __builtin_sqrtf(variance + norm.epsilon));
  for (int64_t i = 0; i < size; i += V::kLanes) {
    const int lanes = count(i);
    const auto off = V::Mul(V::Sub(V::LoadPart(x + i, lanes), V::Set(mean)), scale);
    V::StorePart(
        y + i, lanes,
        V::Fma(off, V::LoadPart(norm.weight + i, lanes), V::LoadPart(norm.bias + i, lanes)));
  }
}

template <class V>
void Rope(float* x, const float* cosines, const float* sines, int64_t half) {
  for (int64_t i = 0; i < half; i += V::kLanes) {
    const int count = half - i < V::kLanes ? static_cast<int>(half - i) : V::kLanes;
    const auto c = V::LoadPart(cosines + i, count), s = V::LoadPart(sines + i, count);
    const auto a = V::LoadPart(x + i, count), b = V::LoadPart(x + half + i, count);
    V::StorePart(x + i, count, V::Sub(V::Mul(a, c), V::Mul(b, s)));
    V::StorePart(x + half + i, count, V::Add(V::Mul(b, c), V::Mul(a, s)));
  }
}

template <class V>
void Scale(float* x, int64_t size, float factor) {
  const auto f = V::Set(factor);
  for (int64_t i = 0; i < size; i += V::kLanes) {  // Sizes are multiples of kTileColumns.
    V::Store(x + i, V::Mul(V::Load(x + i), f));
  }
}

template <class V>
void ConvertToBf16(const float* x, int64_t size, Bf16* y) {
  int64_t i = 0;
  for (; i + V::kLanes <= size; i += V::kLanes) V::StoreBf16(y + i, V::Load(x + i));
  if (i < size) {
    alignas(64) float padded[V::kLanes];
    alignas(64) Bf16 rounded[V::kLanes];
    V::Store(padded, V::LoadPart(x + i, static_cast<int>(size - i)));
    V::StoreBf16(rounded, V::Load(padded));
    for (int64_t j = i; j < size; ++j) y[j].bits = rounded[j - i].bits;
  }
}

template <class V>
void ConvertToFloat(const Bf16* x, int64_t size, float* y) {
  int64_t i = 0;
  for (; i + V::kLanes <= size; i += V::kLanes) V::Store(y + i, V::LoadBf16(x + i));
  for (; i < size; ++i) {
    const uint32_t bits = static_cast<uint32_t>(x[i].bits) << 16;
    __builtin_memcpy(y + i, &bits, sizeof(bits));
  }
}

template <class V>
void AddScaled(const float* x, float factor, int64_t size, float* y) {
  const auto f = V::Set(factor);
  for (int64_t i = 0; i < size; i += V::kLanes) {
    const int count = size - i < V::kLanes ? static_cast<int>(size - i) : V::kLanes;
    V::StorePart(y + i, count, V::Fma(V::LoadPart(x + i, count), f, V::LoadPart(y + i, count)));
  }
}

template <class V>
void AddScaledTile(int rows, const float* sums, const float* scales, float* tile) {
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < kTileColumns; c += V::kLanes) {
      float* target = tile + r * kTileColumns + c;
      const auto sum = V::Load(sums + r * kTileColumns + c);
      V::Store(target, V::Fma(sum, V::Load(scales + c), V::Load(target)));
    }
  }
}

template <class V>
float Dot(const float* x, const float* y, int64_t size) {
  auto sum = V::Set(0.0f);
  for (int64_t i = 0; i < size; i += V::kLanes) {
    const int count = size - i < V::kLanes ? static_cast<int>(size - i) : V::kLanes;
    sum = V::Fma(V::LoadPart(x + i, count), V::LoadPart(y + i, count), sum);
  }
  return V::Sum(sum);
}

// cap * tanh(x / cap), where tanh(x) = 1 - 2 / (1 + e^2x).
template <class V>
typename V::Reg Capped(typename V::Reg x, float cap) {
  const auto one = V::Set(1.0f);
  const auto grown = V::Add(one, Exp<V>(V::Mul(x, V::Set(2.0f / cap))));
  return V::Mul(V::Set(cap), V::Sub(one, V::Div(V::Set(2.0f), grown)));
}

template <class V>
void SoftCap(float* x, int64_t size, float cap) {
  for (int64_t i = 0; i < size; i += V::kLanes) {
    const int count = size - i < V::kLanes ? static_cast<int>(size - i) : V::kLanes;
    V::StorePart(x + i, count, Capped<V>(V::LoadPart(x + i, count), cap));
  }
}

// The exponent e of an activation x / (1 + exp(e)).
template <class V>
struct Silu {
  static typename V::Reg Exponent(typename V::Reg x) { return V::Sub(V::Set(0.0f), x); }
};
// GELU approximated by tanh: x / 2 * (1 + tanh(u)) = x / (1 + exp(-2u)) with
// u = sqrt(2 / pi) * (x + 0.044715 x^3).
template <class V>
struct GeluTanh {
  static typename V::Reg Exponent(typename V::Reg x) {
    const auto cubic = V::Fma(V::Mul(x, x), V::Set(0.044715f), V::Set(1.0f));
    return V::Mul(V::Mul(x, V::Set(-1.59576912f)), cubic);
  }
};

// act(gate) * up.
template <class V, class Act>
struct PlainGate {
  static typename V::Reg Value(typename V::Reg gate, typename V::Reg up, float) {
    const auto decay = Exp<V>(Act::Exponent(gate));
    return V::Mul(V::Div(gate, V::Add(V::Set(1.0f), decay)), up);
  }
};
// GemmOutput::kClampedGate. Max and Min return their second operand if one is NaN.
template <class V>
struct ClampedGate {
  static typename V::Reg Value(typename V::Reg gate, typename V::Reg up, float limit) {
    const auto one = V::Set(1.0f);
    gate = V::Min(V::Set(limit), gate);
    up = V::Max(V::Set(-limit), V::Min(V::Set(limit), up));
    const auto decay = Exp<V>(V::Mul(V::Set(-1.702f), gate));
    return V::Mul(V::Div(gate, V::Add(one, decay)), V::Add(up, one));
  }
};

// Computes 16 outputs from 16 gate columns and the 16 columns of the up projection.
template <class V, class Gate>
void FinishGate(const FinishTileArgs& args) {
  for (int r = 0; r < args.rows; ++r) {
    const float* tile = args.tile + r * kTileColumns;
    float* output = args.output + r * args.output_stride;
    for (int c = 0; c < args.columns / 2; c += V::kLanes) {
      auto gate = V::Load(tile + c), up = V::Load(tile + kTileColumns / 2 + c);
      if (args.bias != nullptr) {
        gate = V::Add(gate, V::Load(args.bias + c));
        up = V::Add(up, V::Load(args.bias + kTileColumns / 2 + c));
      }
      const int left = args.columns / 2 - c;
      V::StorePart(output + c, left < V::kLanes ? left : V::kLanes,
                   Gate::Value(gate, up, args.limit));
    }
  }
}

template <class V>
typename V::Reg Gelu(typename V::Reg x) {
  // x * (1 + erf(x / sqrt(2))) / 2 = max(x, 0) - |x| * erfc(|x| / sqrt(2)) / 2, with erfc by
  // Abramowitz and Stegun, 7.1.26: within 1.5e-7.
  const auto zero = V::Set(0.0f), one = V::Set(1.0f);
  const auto size = V::Max(x, V::Sub(zero, x));
  const auto t = V::Div(one, V::Fma(size, V::Set(0.3275911f * 0.70710678f), one));
  auto p = V::Set(1.061405429f);
  p = V::Fma(p, t, V::Set(-1.453152027f));
  p = V::Fma(p, t, V::Set(1.421413741f));
  p = V::Fma(p, t, V::Set(-0.284496736f));
  p = V::Fma(p, t, V::Set(0.254829592f));
  const auto decay = Exp<V>(V::Mul(V::Mul(x, x), V::Set(-0.5f)));
  const auto half_erfc = V::Mul(V::Mul(V::Mul(p, t), decay), V::Set(0.5f));
  return V::Sub(V::Max(x, zero), V::Mul(size, half_erfc));
}

// An activation without a gate; other modes leave x as it is.
template <class V>
typename V::Reg Activated(TileStore mode, typename V::Reg x) {
  if (mode == TileStore::kGelu) return Gelu<V>(x);
  if (mode != TileStore::kGeluTanh) return x;
  return V::Div(x, V::Add(V::Set(1.0f), Exp<V>(GeluTanh<V>::Exponent(x))));
}

template <class V>
void FinishTile(const FinishTileArgs& args) {
  if (args.mode == TileStore::kSiluGate) return FinishGate<V, PlainGate<V, Silu<V>>>(args);
  if (args.mode == TileStore::kGeluGate) return FinishGate<V, PlainGate<V, GeluTanh<V>>>(args);
  if (args.mode == TileStore::kClampedGate) return FinishGate<V, ClampedGate<V>>(args);
  for (int r = 0; r < args.rows; ++r) {
    const float* tile = args.tile + r * kTileColumns;
    float* output = args.output + r * args.output_stride;
    for (int c = 0; c < args.columns; c += V::kLanes) {
      const int left = args.columns - c;
      const int count = left < V::kLanes ? left : V::kLanes;
      auto value = V::Load(tile + c);
      if (args.bias != nullptr) value = V::Add(value, V::LoadPart(args.bias + c, count));
      value = Activated<V>(args.mode, value);
      if (args.mode == TileStore::kAdd) value = V::Add(value, V::LoadPart(output + c, count));
      V::StorePart(output + c, count, value);
    }
  }
}

// E4M3 codes become bf16 numbers in 16-bit lanes: a code's seven bits of magnitude, shifted to the
// place of bf16's exponent and mantissa, need kE4m3Bias more for the other bias of the exponent.
// The eight subnormal magnitudes need the number in the table instead.
inline constexpr int16_t kE4m3Bias = 120 << 7;
inline constexpr int16_t kE4m3Subnormals[8] = {
    // m * 2^-9 as bf16, less m << 4
    0x0000,        0x3b00 - 0x10, 0x3b80 - 0x20, 0x3bc0 - 0x30,
    0x3c00 - 0x40, 0x3c20 - 0x50, 0x3c40 - 0x60, 0x3c60 - 0x70};

template <class V>
void PackKeys(const Bf16* const* rows, int64_t dims, Bf16* panels) {
  const int64_t pairs = dims / 2;
  for (int token = 0; token < kKvTile; token += V::kLanes) {
    Bf16* panel = panels + token / kTileColumns * dims * kTileColumns + token % kTileColumns * 2;
    for (int64_t pair = 0; pair < pairs; pair += V::kLanes) {
      const int count = pairs - pair < V::kLanes ? static_cast<int>(pairs - pair) : V::kLanes;
      V::TransposePairs(rows + token, 2 * pair, count, panel + pair * 2 * kTileColumns);
    }
  }
}

template <class V>
void PackValues(const Bf16* const* rows, int64_t dims, Bf16* panels) {
  for (int64_t column = 0; column < dims; column += V::kLanes) {
    const int count = dims - column < V::kLanes ? static_cast<int>(dims - column) : V::kLanes;
    Bf16* panel =
        panels + column / kTileColumns * kKvTile * kTileColumns + column % kTileColumns * 2;
    for (int token = 0; token < kKvTile; token += 2) {
      V::Interleave(rows[token] + column, rows[token + 1] + column, count,
                    panel + token * kTileColumns);
    }
  }
}

// Online softmax (Milakov and Gimelshein, arXiv 1805.02867), one tile of 64 scores: the running sum
// is multiplied by exp(old max - new max), and the caller multiplies the output by the same factor.
template <class V>
float SoftmaxRow(const SoftmaxRowArgs& args) {
  constexpr int kLanes = V::kLanes;
  constexpr int kRegs = kKvTile / kLanes;
  alignas(64) float scores[kKvTile];
  typename V::Reg value[kRegs];
  const auto scale = V::Set(args.scale);
  for (int i = 0; i < kRegs; ++i) {
    const int column = i * kLanes;
    const float* source = args.scores[column / kTileColumns] + column % kTileColumns;
    value[i] = V::Mul(V::Load(source), scale);
  }
  if (args.cap > 0) {
    for (int i = 0; i < kRegs; ++i) value[i] = Capped<V>(value[i], args.cap);
  }
  if (args.first > 0 || args.last < kKvTile) {
    for (int i = 0; i < kRegs; ++i) V::Store(scores + i * kLanes, value[i]);
    for (int c = 0; c < args.first; ++c) scores[c] = -__builtin_inff();
    for (int c = args.last; c < kKvTile; ++c) scores[c] = -__builtin_inff();
    for (int i = 0; i < kRegs; ++i) value[i] = V::Load(scores + i * kLanes);
  }
  auto top = value[0];
  for (int i = 1; i < kRegs; ++i) top = V::Max(top, value[i]);
  const float tile_max = V::MaxLane(top);
  const float max = tile_max > *args.max ? tile_max : *args.max;
  const auto shift = V::Set(max);
  auto sum = V::Set(0.0f);
  for (int i = 0; i < kRegs; ++i) {
    value[i] = Exp<V>(V::Sub(value[i], shift));
    sum = V::Add(sum, value[i]);
    V::StoreActivations(args.weights, i * kLanes, value[i]);
  }
  float correction = 1.0f;
  if (max != *args.max) {
    alignas(64) float lanes[kLanes];
    V::Store(lanes, Exp<V>(V::Set(*args.max - max)));
    correction = lanes[0];
  }
  *args.sum = *args.sum * correction + V::Sum(sum);
  *args.max = max;
  return correction;
}

// Calls Kernel::Run<rows>(args...) for rows in 1 .. kTileRows.
template <class Kernel, int kRows = kTileRows, class... Args>
inline void ForRows(int rows, Args... args) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return Kernel::template Run<kRows>(args...);
    ForRows<Kernel, kRows - 1>(rows, args...);
  }
}

// pack_rows for float activations: pairs are copied unchanged.
template <class V>
void PackFloatRows(const float* input, int64_t stride, int rows, int64_t first, int64_t last,
                   void* packed) {
  auto* target = static_cast<float*>(packed);
  for (int r = 0; r < rows; ++r) {
    const float* source = input + r * stride;
    for (int64_t i = first; i < last; i += 2) {
      __builtin_memcpy(target + i * rows + 2 * r, source + i, 2 * sizeof(float));
    }
  }
}

template <class V, class Multiply>
constexpr SimdOps MakeSimdOps() {
  return {.activation_bytes = Multiply::kActivationBytes,
          .pack_rows = Multiply::PackRows,
          .multiply_tile = Multiply::Tile,
          .multiply_two = Multiply::template Panels<2>,
          .multiply_four = Multiply::template Panels<4>,
          .multiply_weights = Multiply::Weights,
          .expand_e4m3 = V::ExpandE4m3,
          .add_scaled_tile = AddScaledTile<V>,
          .finish_tile = FinishTile<V>,
          .rms_norm = RmsNorm<V>,
          .layer_norm = LayerNorm<V>,
          .rope = Rope<V>,
          .to_bf16 = ConvertToBf16<V>,
          .to_float = ConvertToFloat<V>,
          .pack_keys = PackKeys<V>,
          .pack_values = PackValues<V>,
          .softmax_row = SoftmaxRow<V>,
          .scale = Scale<V>,
          .add_scaled = AddScaled<V>,
          .soft_cap = SoftCap<V>,
          .dot = Dot<V>};
}

}  // namespace penstock::simd
