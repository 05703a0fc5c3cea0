#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/kv_rows.h"

namespace penstock {

// Element [i][j] of the rotation of pages: blocks of a normalised Hadamard matrix.
inline double RotationAt(int dims, int i, int j) {
  const int order = std::min(dims & -dims, 128);
  if (i / order != j / order) return 0;
  const bool odd = std::popcount(static_cast<unsigned>(i % order & j % order)) % 2 != 0;
  return (odd ? -1 : 1) / std::sqrt(static_cast<double>(order));
}

// A row times that matrix, by the fast Walsh-Hadamard transform.
inline std::vector<double> Rotated(std::vector<double> x) {
  const int dims = static_cast<int>(x.size()), order = std::min(dims & -dims, 128);
  double* const y = x.data();
  for (int step = 1; step < order; step *= 2) {
    for (int i = 0; i < dims; ++i) {
      if ((i & step) != 0) continue;
      const double a = y[i], b = y[i + step];
      y[i] = a + b;
      y[i + step] = a - b;
    }
  }
  const double scale = 1 / std::sqrt(static_cast<double>(order));
  for (int i = 0; i < dims; ++i) y[i] *= scale;
  return x;
}

inline double ValueOfE4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Bits of a key's and of a value's code.
inline std::array<int, 2> DocumentedBits(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kBf16:
      return {16, 16};
    case KvDtype::kI4r:
      return {4, 4};
    case KvDtype::kK8v4:
      return {8, 4};
    case KvDtype::kK3v3:
      return {3, 3};
    case KvDtype::kK3v2:
      return {3, 2};
    default:
      return {8, 8};
  }
}

// The levels for a normal distribution of deviation 1, by their magnitude.
inline std::vector<double> LevelsOf(int bits) {
  if (bits == 2) return {0.4528, 1.5104};
  return {0.2451, 0.7560, 1.3439, 2.1520};
}

// The level of element d of a row of `dims`, without its scale.
inline double LevelAt(const std::byte* codes, int bits, int64_t dims, int64_t d) {
  const auto bit = [codes](int64_t byte, int64_t at) {
    return static_cast<int>(codes[byte]) >> at & 1;
  };
  const int64_t quarter = dims / 4;
  const int low = bit(d % quarter, d / quarter * 2), high = bit(d % quarter, d / quarter * 2 + 1);
  const bool negative = bits == 2 ? high == 1 : bit(quarter + d / 8, d % 8) == 1;
  const size_t index = static_cast<size_t>(bits == 2 ? low : low + 2 * high);
  return (negative ? -1 : 1) * LevelsOf(bits)[index];
}

// How far the nearest level lies from x, for a row that is stored at `at`.
inline double DistanceToLevels(const PagedKv& kv, const KvRowsAt& at, double x) {
  Bf16 scale;
  std::memcpy(&scale,
              kv.Layer(at.block, at.layer) + kv.layout.ScalesAt(at.kv_head, at.plane, at.slot),
              sizeof(scale));
  double least = INFINITY;
  for (const double level : LevelsOf(CodeBits(kv.layout.dtype, at.plane))) {
    least = std::min(least, std::abs(std::abs(x) - level * ToFloat(scale)));
  }
  return least;
}

// The values of a row of a page, read byte by byte as the layout is documented: the layer's codes
// [kv_head][K|V][slot][row], then its scales [kv_head][K|V][slot]. Rotated rows stay rotated.
inline std::vector<double> HeldRow(const PagedKv& kv, const KvRowsAt& at) {
  const KvLayout& layout = kv.layout;
  const int64_t dims = layout.head_dim, slots = layout.block_tokens;
  const bool values = at.plane == KvPlane::kValues;
  const std::array<int, 2> bits = DocumentedBits(layout.dtype);
  const int64_t row[2] = {dims * bits[0] / 8, dims * bits[1] / 8};
  const int64_t head = slots * (row[0] + row[1]);
  const std::byte* layer = kv.Layer(at.block, at.layer);
  const std::byte* codes =
      layer + at.kv_head * head + (values ? slots * row[0] : 0) + at.slot * row[values];
  const int64_t scale_bytes = layout.dtype == KvDtype::kF8 || bits[1] < 4 ? 2 : 4;
  const std::byte* scales = layer + layout.kv_heads * head +
                            ((at.kv_head * 2 + (values ? 1 : 0)) * slots + at.slot) * scale_bytes;
  const auto bf16_at = [](const std::byte* from) {
    Bf16 value;
    std::memcpy(&value, from, sizeof(value));
    return double{ToFloat(value)};
  };
  std::vector<double> held;
  for (int64_t d = 0; d < dims; ++d) {
    if (layout.dtype == KvDtype::kBf16) {
      held.push_back(bf16_at(codes + 2 * d));
      continue;
    }
    if (bits[values] < 4) {
      const float level = static_cast<float>(LevelAt(codes, bits[values], dims, d));
      held.push_back(ToFloat(ToBf16(level * static_cast<float>(bf16_at(scales)))));
      continue;
    }
    const int64_t half = dims / 2;
    const bool four = bits[values] == 4;
    const auto byte = static_cast<uint8_t>(codes[four ? d % half : d]);
    const int code = !four ? byte : d < half ? byte & 15 : byte >> 4;
    const double scale = bf16_at(scales);
    const double x = layout.dtype == KvDtype::kF8 ? ValueOfE4m3(byte) * scale
                                                  : bf16_at(scales + 2) + code * scale;
    held.push_back(ToFloat(ToBf16(static_cast<float>(x))));
  }
  return held;
}

// The second copy of a row in pages with a span: [kv_head][K|V][slot][row] in bf16, in the layer
// behind that of the first copy.
inline std::vector<double> HeldRecentRow(const PagedKv& kv, const KvRowsAt& at) {
  const int64_t dims = kv.layout.head_dim, slots = kv.layout.block_tokens;
  const int64_t plane = at.plane == KvPlane::kValues ? 1 : 0;
  const std::byte* const row =
      kv.Layer(at.block, at.layer + 1) + ((at.kv_head * 2 + plane) * slots + at.slot) * dims * 2;
  std::vector<double> held;
  for (int64_t d = 0; d < dims; ++d) {
    Bf16 value;
    std::memcpy(&value, row + 2 * d, sizeof(value));
    held.push_back(ToFloat(value));
  }
  return held;
}

}  // namespace penstock
