// Plain C++ in groups of eight lanes, which every compiler vectorises for its baseline.

#include "kernels/cpu/simd_ops.h"

namespace penstock::simd {
namespace {

struct Lanes {
  float v[8];
};

inline uint32_t BitsOf(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float FloatOf(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}

template <class F>
inline Lanes Each(F f) {
  Lanes result;
  for (int i = 0; i < 8; ++i) result.v[i] = f(i);
  return result;
}

struct Portable {
  using Reg = Lanes;
  static constexpr int kLanes = 8;

  static Reg Load(const float* p) {
    return Each([&](int i) { return p[i]; });
  }
  static Reg LoadPart(const float* p, int count) {
    return Each([&](int i) { return i < count ? p[i] : 0.0f; });
  }
  static void Store(float* p, Reg a) {
    for (int i = 0; i < kLanes; ++i) p[i] = a.v[i];
  }
  static void StorePart(float* p, int count, Reg a) {
    for (int i = 0; i < count; ++i) p[i] = a.v[i];
  }
  static Reg Set(float x) {
    return Each([&](int) { return x; });
  }
  static Reg Add(Reg a, Reg b) {
    return Each([&](int i) { return a.v[i] + b.v[i]; });
  }
  static Reg Sub(Reg a, Reg b) {
    return Each([&](int i) { return a.v[i] - b.v[i]; });
  }
  static Reg Mul(Reg a, Reg b) {
    return Each([&](int i) { return a.v[i] * b.v[i]; });
  }
  static Reg Div(Reg a, Reg b) {
    return Each([&](int i) { return a.v[i] / b.v[i]; });
  }
  static Reg Fma(Reg a, Reg b, Reg c) {
    return Each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  static Reg Max(Reg a, Reg b) {
    return Each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static Reg Min(Reg a, Reg b) {
    return Each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  // Rounds to nearest: adding 1.5 * 2^23 leaves no bits for a fraction. |a| is far below 2^22.
  static Reg Round(Reg a) {
    return Each([&](int i) { return a.v[i] + 12582912.0f - 12582912.0f; });
  }
  static Reg TimesPowerOf2(Reg a, Reg n) {
    return Each([&](int i) {
      return FloatOf(BitsOf(a.v[i]) + (static_cast<uint32_t>(static_cast<int32_t>(n.v[i])) << 23));
    });
  }
  static Reg ZeroWhereLess(Reg a, Reg limit, Reg value) {
    return Each([&](int i) { return a.v[i] < limit.v[i] ? 0.0f : value.v[i]; });
  }
  static float Sum(Reg a) {
    return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
  }
  static float MaxLane(Reg a) {
    float top = a.v[0];
    for (int i = 1; i < kLanes; ++i) top = a.v[i] > top ? a.v[i] : top;
    return top;
  }
  static Reg LoadBf16(const Bf16* p) {
    return Each([&](int i) { return FloatOf(static_cast<uint32_t>(p[i].bits) << 16); });
  }
  static void StoreBf16(Bf16* p, Reg a) {
    for (int i = 0; i < kLanes; ++i) {
      const uint32_t bits = BitsOf(a.v[i]);
      const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
      const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
      p[i].bits = static_cast<uint16_t>((nan ? bits | 0x400000u : rounded) >> 16);
    }
  }
  static void StoreActivations(void* base, int index, Reg a) {
    Store(static_cast<float*>(base) + index, a);
  }
  static uint16_t E4m3Number(uint8_t code) {
    const int magnitude = code & 0x7f;
    const int more = magnitude < 8 ? kE4m3Subnormals[magnitude] : kE4m3Bias;
    return static_cast<uint16_t>((code & 0x80) << 8 | ((magnitude << 4) + more));
  }
  static void ExpandE4m3(const std::byte* codes, int64_t words, Bf16* numbers) {
    for (int64_t w = 0; w < words; ++w, codes += 4 * kTileColumns, numbers += 4 * kTileColumns) {
      for (int i = 0; i < 2 * kTileColumns; ++i) {
        numbers[i].bits = E4m3Number(static_cast<uint8_t>(codes[2 * i]));
        numbers[2 * kTileColumns + i].bits = E4m3Number(static_cast<uint8_t>(codes[2 * i + 1]));
      }
    }
  }
  static void TransposePairs(const Bf16* const* rows, int64_t offset, int count, Bf16* target) {
    for (int pair = 0; pair < count; ++pair) {
      for (int row = 0; row < kLanes; ++row) {
        __builtin_memcpy(target + pair * 2 * kTileColumns + 2 * row, rows[row] + offset + 2 * pair,
                         2 * sizeof(Bf16));
      }
    }
  }
  static void Interleave(const Bf16* even, const Bf16* odd, int count, Bf16* target) {
    for (int i = 0; i < count; ++i) {
      target[2 * i] = even[i];
      target[2 * i + 1] = odd[i];
    }
  }
};

struct Multiply {
  static constexpr int kActivationBytes = sizeof(float);
  static constexpr auto PackRows = PackFloatRows<Portable>;

  // Multiplies one row, whose inputs 2p and 2p + 1 are at a[r * row_step + p * pair_step].
  static void Row(int64_t pairs, const float* a, int64_t pair_step, const Bf16* b, float* tile) {
    float sums[kTileColumns];
    for (int c = 0; c < kTileColumns; ++c) sums[c] = tile[c];
    for (int64_t p = 0; p < pairs; ++p, b += 2 * kTileColumns) {
      const float even = a[p * pair_step], odd = a[p * pair_step + 1];
      for (int c = 0; c < kTileColumns; ++c) {
        uint32_t both;
        __builtin_memcpy(&both, b + 2 * c, sizeof(both));
        sums[c] += even * FloatOf(both << 16);
        sums[c] += odd * FloatOf(both & 0xffff0000u);
      }
    }
    for (int c = 0; c < kTileColumns; ++c) tile[c] = sums[c];
  }
  static void Tile(int rows, int64_t pairs, const void* a, const Bf16* b, float* tile) {
    for (int r = 0; r < rows; ++r) {
      Row(pairs, static_cast<const float*>(a) + 2 * r, 2 * rows, b, tile + r * kTileColumns);
    }
  }
  template <int kPanels>
  static void Panels(int rows, int64_t pairs, const void* a, const TileProduct* products) {
    for (int n = 0; n < kPanels; ++n) {
      Tile(rows, pairs, a, products[n].weights, products[n].tile);
    }
  }
  static void Weights(int rows, const void* a, const Bf16* b, float* tile) {
    for (int r = 0; r < rows; ++r) {
      Row(kKvTile / 2, static_cast<const float*>(a) + r * kKvTile, 2, b, tile + r * kTileColumns);
    }
  }
};

}  // namespace

extern const SimdOps kPortableOps = MakeSimdOps<Portable, Multiply>();

}  // namespace penstock::simd
