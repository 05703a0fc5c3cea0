#pragma once

#include "kernels/cuda/device/hadamard.cuh"
#include "kernels/cuda/device/levels.cuh"
#include "kernels/cuda/device/quantise.cuh"
#include "kernels/cuda/device/row_values.cuh"

namespace penstock::cuda {

constexpr int kRopeWarps = 8;                // per block; one warp handles one head of one token
constexpr uint32_t kExponentMax = 240;       // as kQuantisedExponentMax of kv_quant.h
constexpr uint32_t kNanScales = 0x7fc07fc0;  // scale and minimum of a row that reads back as NaN

// A head in a warp: lane l has elements [l * kElements, (l + 1) * kElements).
template <int kDim>
struct HeadRow {
  static constexpr int kElements = kDim / 32;
  float x[kElements];
  int lane;

  PENSTOCK_DEVICE void Normalise(const float* weight, float epsilon) {
    float sum = 0;
    PENSTOCK_UNROLL
    for (int i = 0; i < kElements; ++i) sum = Add(sum, Multiply(x[i], x[i]));
    sum = WarpSum(sum);
    const float mean = Divide(sum, static_cast<float>(kDim));
    const float scale = Divide(1.0f, SquareRoot(Add(mean, epsilon)));
    PENSTOCK_UNROLL
    for (int i = 0; i < kElements; ++i) {
      x[i] = Multiply(Multiply(x[i], scale), weight[lane * kElements + i]);
    }
  }

  PENSTOCK_DEVICE void Rotate(const float* cosines, const float* sines) {
    const int angle = (lane & 15) * kElements;
    const auto cosine = FloatsAt<kElements>(cosines + angle);
    const auto sine = FloatsAt<kElements>(sines + angle);
    PENSTOCK_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float other = ShuffleXor(x[i], 16);
      const float straight = Multiply(x[i], cosine.value[i]);
      const float crossed = Multiply(other, sine.value[i]);
      x[i] = Add(straight, lane < 16 ? -crossed : crossed);
    }
  }

  // Rotates the first `dims` dimensions, a multiple of 2 * kElements.
  PENSTOCK_DEVICE void RotatePart(const float* cosines, const float* sines, int dims) {
    const int half = dims / 2 / kElements;  // lanes of the first dimensions of the pairs
    const bool first = lane < half, rotated = lane < 2 * half;
    const int pair = first ? lane : lane - half;
    const int partner = !rotated ? lane : first ? lane + half : pair;
    Floats<kElements> cosine{}, sine{};
    if (rotated) {
      cosine = FloatsAt<kElements>(cosines + pair * kElements);
      sine = FloatsAt<kElements>(sines + pair * kElements);
    }
    PENSTOCK_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float other = Shuffle(x[i], partner);
      const float straight = Multiply(x[i], cosine.value[i]);
      const float crossed = Multiply(other, sine.value[i]);
      if (rotated) x[i] = Add(straight, first ? -crossed : crossed);
    }
  }

  // The lane that has the other dimensions of this one's rotated pairs.
  PENSTOCK_DEVICE int PartnerOf(int dims) const {
    const int half = dims / 2 / kElements;
    if (lane >= 2 * half) return lane;
    return lane < half ? lane + half : lane - half;
  }

  // Replaces a rotated query by the factors of a position's cosines, sines and ones in its product
  // with `mean` at that position.
  PENSTOCK_DEVICE void ToCentreFactors(const float* mean, int dims) {
    const int partner = PartnerOf(dims);
    const bool second = partner < lane;
    const auto own = FloatsAt<kElements>(mean + lane * kElements);
    const auto opposite = FloatsAt<kElements>(mean + partner * kElements);
    PENSTOCK_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float other = Shuffle(x[i], partner);
      const float straight = Multiply(x[i], second ? opposite.value[i] : own.value[i]);
      const float crossed = Multiply(other, second ? own.value[i] : opposite.value[i]);
      x[i] = partner == lane ? straight : Add(straight, second ? -crossed : crossed);
    }
  }

  PENSTOCK_DEVICE void Subtract(const HeadRow& other) {
    PENSTOCK_UNROLL
    for (int i = 0; i < kElements; ++i) x[i] = Add(x[i], -other.x[i]);
  }

  PENSTOCK_DEVICE void RoundToBf16() {
    PENSTOCK_UNROLL
    for (int i = 0; i < kElements; ++i) x[i] = WidenBf16(RoundBf16(x[i]));
  }

  // True if kv_quant.h accepts the rounded row: no infinity, no NaN, no magnitude of 2^113 or more.
  PENSTOCK_DEVICE bool IsQuantisable() const {
    bool too_large = false;
    PENSTOCK_UNROLL
    for (int i = 0; i < kElements; ++i) {
      too_large = too_large || (FloatToBits(x[i]) >> 23 & 0xffu) >= kExponentMax;
    }
    return Ballot(too_large) == 0;
  }

  PENSTOCK_DEVICE void Hadamard() { cuda::Hadamard(x, lane); }

  PENSTOCK_DEVICE void StoreBf16(void* row) const {
    auto* words = static_cast<uint32_t*>(row) + lane * (kElements / 2);
    PENSTOCK_UNROLL
    for (int i = 0; i < kElements; i += 2) words[i / 2] = PackBf16(x[i], x[i + 1]);
  }
};

// codes = rint((x - minimum) / scale); returns {scale, minimum}.
template <int kDim, int kLevels>
PENSTOCK_DEVICE uint32_t QuantiseAffine(const HeadRow<kDim>& row, uint32_t& codes) {
  float low = row.x[0], high = row.x[0];
  PENSTOCK_UNROLL
  for (int i = 1; i < HeadRow<kDim>::kElements; ++i) {
    low = fminf(low, row.x[i]);
    high = fmaxf(high, row.x[i]);
  }
  PENSTOCK_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) {
    low = fminf(low, ShuffleXor(low, mask));
    high = fmaxf(high, ShuffleXor(high, mask));
  }
  const AffineScale<kLevels> affine(low, high);
  codes = 0;
  PENSTOCK_UNROLL
  for (int i = 0; i < HeadRow<kDim>::kElements; ++i) codes |= affine.Code(row.x[i]) << (8 * i);
  return affine.scale | affine.minimum_bits << 16;
}

// Codes the values as e4m3 divided by the lowest power of two for which they fit; returns that
// power as bf16.
template <int kDim>
PENSTOCK_DEVICE uint32_t QuantiseF8(const HeadRow<kDim>& row, uint32_t& codes) {
  uint32_t top = 0;
  PENSTOCK_UNROLL
  for (int i = 0; i < HeadRow<kDim>::kElements; ++i) {
    const uint32_t magnitude = FloatToBits(row.x[i]) >> 16 & 0x7fffu;
    top = magnitude > top ? magnitude : top;
  }
  PENSTOCK_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) {
    const uint32_t other = ShuffleXor(top, mask);
    top = other > top ? other : top;
  }
  const F8Scale<F8Format::kE4m3> f8(top);
  codes = 0;
  PENSTOCK_UNROLL
  for (int i = 0; i < HeadRow<kDim>::kElements; ++i) codes |= f8.Code(row.x[i]) << (8 * i);
  return f8.scale >> 16;
}

template <int kDim>
PENSTOCK_DEVICE void StoreCodes(uint32_t codes, int lane, std::byte* row) {
  if constexpr (kDim == 128) {
    reinterpret_cast<uint32_t*>(row)[lane] = codes;
  } else {
    reinterpret_cast<uint16_t*>(row)[lane] = static_cast<uint16_t>(codes);
  }
}

// Stores the codes and scales of a row in its quantised format.
template <KvCode kCode, int kDim>
PENSTOCK_DEVICE uint32_t Quantise(const HeadRow<kDim>& x, uint32_t& codes) {
  constexpr int kLevels = kCode == KvCode::kI4 ? 15 : 255;
  if constexpr (kCode == KvCode::kF8) return QuantiseF8(x, codes);
  return QuantiseAffine<kDim, kLevels>(x, codes);
}

// Stores a row as levels times `scale`, a bf16. With 3 bits the signs lie behind the magnitudes.
template <int kBits, int kDim>
PENSTOCK_DEVICE void StoreLevels(const HeadRow<kDim>& x, uint32_t scale, std::byte* row) {
  constexpr int kElements = HeadRow<kDim>::kElements;
  uint32_t codes = 0, signs = 0;
  PENSTOCK_UNROLL
  for (int i = 0; i < kElements; ++i) {
    const uint32_t index = LevelIndex<kBits>(fabsf(x.x[i]), WidenBf16(scale));
    const uint32_t sign = FloatToBits(x.x[i]) >> 31;
    codes |= (kBits == 2 ? index | sign << 1 : index) << (8 * i);
    signs |= sign << i;
  }
  codes <<= 2 * (x.lane / 8);  // a byte has one code of each quarter of the row
  codes |= ShuffleXor(codes, 8);
  codes |= ShuffleXor(codes, 16);
  if (x.lane < 8) StoreCodes<kDim>(codes, x.lane, row);
  if constexpr (kBits == 3) {
    constexpr int kLanes = 32 / kElements;  // of a word of signs
    signs <<= kElements * (x.lane % kLanes);
    PENSTOCK_UNROLL
    for (int mask = 1; mask < kLanes; mask *= 2) signs |= ShuffleXor(signs, mask);
    if (x.lane % kLanes == 0) {
      reinterpret_cast<uint32_t*>(row + kDim / 4)[x.lane / kLanes] = signs;
    }
  }
}

// Fits the scale of a row and stores both.
template <int kBits, int kDim>
PENSTOCK_DEVICE void StoreFitted(const HeadRow<kDim>& x, bool quantisable, std::byte* row,
                                 std::byte* scale) {
  HeadRow<kDim> fitted = x;
  uint32_t scale_bits = kNanScales & 0xffffu;
  if (quantisable) {
    scale_bits = LevelFit<kDim>(x.x, x.lane).template Scale<kBits>();
  } else {
    PENSTOCK_UNROLL
    for (int i = 0; i < HeadRow<kDim>::kElements; ++i) fitted.x[i] = 0;
  }
  StoreLevels<kBits>(fitted, scale_bits, row);
  if (x.lane == 0) *reinterpret_cast<uint16_t*>(scale) = static_cast<uint16_t>(scale_bits);
}

// Stores a row. A row that is not `quantisable` reads back as NaN, as StoreKvRow (kv_rows.h)
// specifies.
template <KvCode kCode, int kDim>
PENSTOCK_DEVICE void StoreRow(const HeadRow<kDim>& x, bool quantisable, std::byte* row,
                              std::byte* scale) {
  if constexpr (kCode == KvCode::kBf16) {
    x.StoreBf16(row);
  } else if constexpr (IsLevels(kCode)) {
    StoreFitted<CodeBits(kCode)>(x, quantisable, row, scale);
  } else {
    uint32_t codes;
    uint32_t params = Quantise<kCode>(x, codes);
    if (!quantisable) {
      codes = 0;
      params = kNanScales;
    }
    if constexpr (kCode == KvCode::kI4) {
      const uint32_t upper = ShuffleXor(codes, 16);  // of the elements kDim / 2 further on
      if (x.lane < 16) StoreCodes<kDim>(codes | upper << 4, x.lane, row);
    } else {
      StoreCodes<kDim>(codes, x.lane, row);
    }
    if (x.lane != 0) return;
    if constexpr (kCode == KvCode::kF8) {
      *reinterpret_cast<uint16_t*>(scale) = static_cast<uint16_t>(params);
    } else {
      *reinterpret_cast<uint32_t*>(scale) = params;
    }
  }
}

template <KvCode kCode, int kDim>
PENSTOCK_DEVICE void StoreInPage(const KvPlanes& kv, const KvPlane& plane, int64_t where, int head,
                                 const HeadRow<kDim>& x, bool quantisable) {
  std::byte* page = kv.layer + (where >> kv.page_log2) * kv.block_stride;
  const auto slot = static_cast<int32_t>(where & ((int64_t{1} << kv.page_log2) - 1));
  StoreRow<kCode>(
      x, quantisable, page + plane.offset + head * plane.head_stride + slot * plane.row_bytes,
      page + plane.scale_offset + head * plane.scale_head_stride + slot * ScaleBytes(kCode));
}

// Stores the second copy of a key or value, whose exact elements are rounded once.
template <int kDim>
PENSTOCK_DEVICE void StoreRecent(const RopeAppendParams& p, const KvPlane& plane, int64_t row,
                                 int head, HeadRow<kDim> x, bool rotated) {
  if (rotated) x.Hadamard();
  StoreInPage<KvCode::kBf16>(p.recent, plane, p.recent_slots[row], head, x, true);
}

// Rotates a head to the position of a row.
template <bool kWhole, int kDim>
PENSTOCK_DEVICE void RotateTo(const RopeAppendParams& p, int64_t row, HeadRow<kDim>& x) {
  if constexpr (kWhole) {
    x.Rotate(p.cosines + row * (kDim / 2), p.sines + row * (kDim / 2));
  } else {
    const int64_t angles = row * (p.rotary_dims / 2);
    x.RotatePart(p.cosines + angles, p.sines + angles, p.rotary_dims);
  }
}

// Stores the centre query of a head's rotated query.
template <bool kWhole, int kDim>
PENSTOCK_DEVICE void StoreCentreQuery(const RopeAppendParams& p, int64_t row, int head,
                                      HeadRow<kDim> x) {
  const int kv_head = head / (p.heads / p.kv.kv_heads);
  x.ToCentreFactors(p.key_means + kv_head * kDim, kWhole ? kDim : p.rotary_dims);
  x.StoreBf16(p.centre_queries + (row * p.heads + head) * kDim);
}

// Takes the mean at its position from a rotated key.
template <bool kWhole, int kDim>
PENSTOCK_DEVICE void Centre(const RopeAppendParams& p, int64_t row, int kv_head,
                            HeadRow<kDim>& key) {
  constexpr int kElements = HeadRow<kDim>::kElements;
  const auto own = FloatsAt<kElements>(p.key_means + kv_head * kDim + key.lane * kElements);
  HeadRow<kDim> mean;
  mean.lane = key.lane;
  PENSTOCK_UNROLL
  for (int i = 0; i < kElements; ++i) mean.x[i] = own.value[i];
  RotateTo<kWhole>(p, row, mean);
  key.Subtract(mean);
}

// Rotates a head of a row, and stores it.
template <KvCode kKeys, KvCode kValues, int kDim, bool kWhole, bool kSpan, bool kCentred = false>
PENSTOCK_DEVICE void RopeAppendHead(const RopeAppendParams& p) {
  const int all = p.heads + 2 * p.kv.kv_heads;
  const int64_t index = static_cast<int64_t>(BlockX()) * kRopeWarps + ThreadX() / 32;
  if (index >= static_cast<int64_t>(p.rows) * all) return;
  const int64_t row = index / all;
  const auto column = static_cast<int>(index % all);
  const bool query = column < p.heads, value = column >= p.heads + p.kv.kv_heads;

  HeadRow<kDim> x;
  x.lane = ThreadX() % 32;
  constexpr int kElements = HeadRow<kDim>::kElements;
  const auto own = ProductAt<kElements>(p.product, row, column * kDim + x.lane * kElements);
  PENSTOCK_UNROLL
  for (int i = 0; i < kElements; ++i) x.x[i] = own.value[i];
  if (!value) {
    const float* norm = query ? p.query_norm : p.key_norm;
    if (norm != nullptr) x.Normalise(norm, p.epsilon);
    RotateTo<kWhole>(p, row, x);
  }
  if (query) {
    if constexpr (kCentred) StoreCentreQuery<kWhole>(p, row, column, x);
    if (p.kv.rotated_keys) x.Hadamard();
    x.StoreBf16(p.queries + (row * p.heads + column) * kDim);
    return;
  }
  const int64_t where = p.slots[row];
  if (where < 0) return;
  if constexpr (kSpan) {
    const int head = column - p.heads - (value ? p.kv.kv_heads : 0);
    const bool rotated = value ? IsLevels(kValues) : p.kv.rotated_keys;
    StoreRecent(p, value ? p.recent.values : p.recent.keys, row, head, x, rotated);
  }
  if constexpr (kCentred) {
    if (!value) Centre<kWhole>(p, row, column - p.heads, x);
  }
  x.RoundToBf16();
  const bool quantisable = x.IsQuantisable();
  if (value) {
    if constexpr (IsLevels(kValues)) x.Hadamard();
    StoreInPage<kValues>(p.kv, p.kv.values, where, column - p.heads - p.kv.kv_heads, x,
                         quantisable);
  } else {
    if (p.kv.rotated_keys) x.Hadamard();
    StoreInPage<kKeys>(p.kv, p.kv.keys, where, column - p.heads, x, quantisable);
  }
}

// RoPE (Su et al., arXiv 2104.09864) and the store into the pages. Grid: rows * (heads + 2 *
// kv_heads) / kRopeWarps. kWhole: whole heads are rotated.
template <KvCode kKeys, KvCode kValues, int kDim, bool kWhole>
__global__ void __launch_bounds__(kRopeWarps * 32)
    RopeAppendKernel(const __grid_constant__ RopeAppendParams p) {
  RopeAppendHead<kKeys, kValues, kDim, kWhole, false>(p);
}

// The same where pages have a span.
template <KvCode kKeys, KvCode kValues, int kDim, bool kWhole>
__global__ void __launch_bounds__(kRopeWarps * 32)
    RopeAppendTwiceKernel(const __grid_constant__ RopeAppendParams p) {
  RopeAppendHead<kKeys, kValues, kDim, kWhole, true>(p);
}

// The same where keys are centred, too.
template <KvCode kKeys, KvCode kValues, int kDim, bool kWhole>
__global__ void __launch_bounds__(kRopeWarps * 32)
    RopeAppendCentredKernel(const __grid_constant__ RopeAppendParams p) {
  RopeAppendHead<kKeys, kValues, kDim, kWhole, true, true>(p);
}

}  // namespace penstock::cuda
