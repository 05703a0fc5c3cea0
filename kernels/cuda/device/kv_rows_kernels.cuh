#pragma once

#include "kernels/cuda/device/kv_rows.cuh"

namespace penstock::cuda {

struct KvRowsKernelParams {
  KvRowsParams rows;
  uint64_t count = 0;  // number of rows
};

PENSTOCK_DEVICE uint64_t RowOfWarp() {
  return static_cast<uint64_t>(BlockX()) * kRowsWarps + ThreadX() / 32;
}

// Stores that need only 2-byte alignment.
PENSTOCK_DEVICE void StoreHalves(std::byte* to, uint32_t low, uint32_t high) {
  reinterpret_cast<uint16_t*>(to)[0] = static_cast<uint16_t>(low);
  reinterpret_cast<uint16_t*>(to)[1] = static_cast<uint16_t>(high);
}

template <int kElements>
struct RowEncoder : CodecRow<kElements> {
  using CodecRow<kElements>::Has;
  using CodecRow<kElements>::lane;

  template <F8Format kFormat>
  PENSTOCK_DEVICE void F8(const uint32_t (&bits)[kElements], const RowPlace& place) const {
    uint32_t top = 0;
    PENSTOCK_UNROLL
    for (int k = 0; k < kElements; ++k) {
      if (Has(k)) top = (bits[k] & 0x7fffu) > top ? bits[k] & 0x7fffu : top;
    }
    const F8Scale<kFormat> f8(WarpMost(top));
    PENSTOCK_UNROLL
    for (int k = 0; k < kElements; ++k) {
      if (Has(k)) place.codes[k * 32 + lane] = static_cast<std::byte>(f8.Code(WidenBf16(bits[k])));
    }
    if (lane == 0) {
      *reinterpret_cast<uint16_t*>(place.scale) = static_cast<uint16_t>(f8.scale >> 16);
    }
  }

  template <int kLevels>
  PENSTOCK_DEVICE void Affine(const float (&x)[kElements], const RowPlace& place) const {
    float low = x[0], high = x[0];
    PENSTOCK_UNROLL
    for (int k = 1; k < kElements; ++k) {
      if (!Has(k)) continue;
      low = fminf(low, x[k]);
      high = fmaxf(high, x[k]);
    }
    PENSTOCK_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) {
      low = fminf(low, ShuffleXor(low, mask));
      high = fmaxf(high, ShuffleXor(high, mask));
    }
    const AffineScale<kLevels> affine(low, high);
    uint32_t code[kElements] = {};
    PENSTOCK_UNROLL
    for (int k = 0; k < kElements; ++k) {
      if (Has(k)) code[k] = affine.Code(x[k]);
      if (kLevels == 255 && Has(k)) place.codes[k * 32 + lane] = static_cast<std::byte>(code[k]);
    }
    if constexpr (kLevels == 15) this->StoreNibbles(code, place.codes);
    if (lane == 0) StoreHalves(place.scale, affine.scale, affine.minimum_bits);
  }

  PENSTOCK_DEVICE void Code(const uint32_t (&bits)[kElements], const RowPlace& place) const {
    if (place.code == KvRowCode::kF8E4m3) return F8<F8Format::kE4m3>(bits, place);
    if (place.code == KvRowCode::kF8E5m2) return F8<F8Format::kE5m2>(bits, place);
    float x[kElements];
    PENSTOCK_UNROLL
    for (int k = 0; k < kElements; ++k) x[k] = WidenBf16(bits[k]);
    if (place.code == KvRowCode::kI8) return Affine<255>(x, place);
    if (place.code == KvRowCode::kI4Rotated) {
      this->Hadamard(x);
      const float scale = HadamardScale(this->order());
      PENSTOCK_UNROLL
      for (int k = 0; k < kElements; ++k) x[k] = Multiply(x[k], scale);
    }
    Affine<15>(x, place);
  }
};

// Encodes rows. Grid: rows / kRowsWarps.
template <int kElements>
__global__ void __launch_bounds__(kRowsWarps * 32)
    EncodeRowsKernel(const __grid_constant__ KvRowsKernelParams p) {
  const uint64_t index = RowOfWarp();
  if (index >= p.count || !HasPayload(p.rows)) return;
  const RowPlace place(p.rows, index);
  const RowEncoder<kElements> row{{static_cast<int>(p.rows.dims / 32), ThreadX() % 32}};
  uint32_t bits[kElements] = {};
  uint32_t max = 0;
  PENSTOCK_UNROLL
  for (int k = 0; k < kElements; ++k) {
    if (row.Has(k)) bits[k] = place.values[k * 32 + row.lane].bits;
    max = (bits[k] & 0x7fffu) > max ? bits[k] & 0x7fffu : max;
  }
  if (place.group == 0) {
    auto* exact = reinterpret_cast<uint16_t*>(place.exact_bytes);
    for (uint32_t i = row.lane; i < p.rows.exact; i += 32) {
      exact[i] = place.exact[i].bits;
      max = (exact[i] & 0x7fffu) > max ? exact[i] & 0x7fffu : max;
    }
  }
  if (WarpMost(max) >> 7 >= kQuantisedExponentMax && row.lane == 0) {
    AtomicMin(&p.rows.result->fault, PackKvFault(KvFault::kValues, place.layer));
  }
  row.Code(bits, place);
}

template <int kElements>
struct RowDecoder : CodecRow<kElements> {
  using CodecRow<kElements>::Has;
  using CodecRow<kElements>::lane;

  PENSTOCK_DEVICE void Store(const RowPlace& place, int k, float x) const {
    place.values[k * 32 + lane].bits = RoundBf16(x);
  }

  template <F8Format kFormat>
  PENSTOCK_DEVICE void F8(const RowPlace& place) const {
    const float scale = WidenBf16(*reinterpret_cast<const uint16_t*>(place.scale));
    PENSTOCK_UNROLL
    for (int k = 0; k < kElements; ++k) {
      if (!Has(k)) continue;
      const auto code = static_cast<uint32_t>(place.codes[k * 32 + lane]);
      Store(place, k, F8Value<kFormat>(code << 24, scale));
    }
  }

  PENSTOCK_DEVICE void Rotated(const uint32_t (&code)[kElements], float scale, float minimum,
                               const RowPlace& place) const {
    int32_t x[kElements];
    PENSTOCK_UNROLL
    for (int k = 0; k < kElements; ++k) x[k] = static_cast<int32_t>(code[k]);
    this->Hadamard(x);  // exact; the minimum's transform is one value per block
    const int order = this->order();
    const float normaliser = HadamardScale(order);
    const float step = Multiply(scale, normaliser);
    const float first = Multiply(minimum, Multiply(normaliser, static_cast<float>(order)));
    PENSTOCK_UNROLL
    for (int k = 0; k < kElements; ++k) {
      if (!Has(k)) continue;
      const float value = Multiply(static_cast<float>(x[k]), step);
      Store(place, k, (k * 32 + lane) % order == 0 ? Add(value, first) : value);
    }
  }

  PENSTOCK_DEVICE void Decode(const RowPlace& place) const {
    if (place.code == KvRowCode::kF8E4m3) return F8<F8Format::kE4m3>(place);
    if (place.code == KvRowCode::kF8E5m2) return F8<F8Format::kE5m2>(place);
    const auto* params = reinterpret_cast<const uint16_t*>(place.scale);
    const float scale = WidenBf16(params[0]), minimum = WidenBf16(params[1]);
    uint32_t code[kElements] = {};
    if (place.code == KvRowCode::kI8) {
      PENSTOCK_UNROLL
      for (int k = 0; k < kElements; ++k) {
        if (Has(k)) code[k] = static_cast<uint32_t>(place.codes[k * 32 + lane]);
      }
    } else {
      this->LoadNibbles(place.codes, code);
    }
    if (place.code == KvRowCode::kI4Rotated) return Rotated(code, scale, minimum, place);
    PENSTOCK_UNROLL
    for (int k = 0; k < kElements; ++k) {
      if (Has(k)) Store(place, k, Add(Multiply(static_cast<float>(code[k]), scale), minimum));
    }
  }
};

// Decodes rows. Grid: rows / kRowsWarps.
template <int kElements>
__global__ void __launch_bounds__(kRowsWarps * 32)
    DecodeRowsKernel(const __grid_constant__ KvRowsKernelParams p) {
  const uint64_t index = RowOfWarp();
  if (index >= p.count || !HasPayload(p.rows)) return;
  const RowPlace place(p.rows, index);
  const RowDecoder<kElements> row{{static_cast<int>(p.rows.dims / 32), ThreadX() % 32}};
  row.Decode(place);
  if (place.group != 0) return;
  const auto* exact = reinterpret_cast<const uint16_t*>(place.exact_bytes);
  for (uint32_t i = row.lane; i < p.rows.exact; i += 32) place.exact[i].bits = exact[i];
}

}  // namespace penstock::cuda
