#pragma once

// The codecs f8, i8, i4r and k8v4: a warp handles a row (a group of elements with one scale).
// Element 32 * k + lane of the row is x[k] of the lane.

#include "kernels/cuda/device/block_ops.cuh"
#include "kernels/cuda/device/quantise.cuh"
#include "kernels/cuda/kv_codec.h"

namespace penstock::cuda {

constexpr int kRowsWarps = 8;
constexpr int kRowElementsMax = kQuantisedGroupMax / 32;

PENSTOCK_DEVICE int32_t ShuffleXor(int32_t v, int mask) {
  return static_cast<int32_t>(ShuffleXor(static_cast<uint32_t>(v), mask));
}
PENSTOCK_DEVICE int32_t Add(int32_t a, int32_t b) { return a + b; }

// 1 / sqrt(order), rounded as in kv_quant_ops.h.
PENSTOCK_DEVICE float HadamardScale(int order) {
  return order == 32 ? 0.176776695f : order == 64 ? 0.125f : 0.0883883476f;
}

// True if the payload exists: an encoder of cgx found room for it, or a decoder found it valid.
PENSTOCK_DEVICE bool HasPayload(const KvRowsParams& p) {
  return !p.behind_streams || p.result->framed == 1;
}

// The addresses of the parts of one row.
struct RowPlace {
  uint32_t layer, slot, group;
  KvRowCode code;
  Bf16* values;
  Bf16* exact;  // exact elements of the row's slot
  std::byte *codes, *scale, *exact_bytes;

  PENSTOCK_DEVICE RowPlace(const KvRowsParams& p, uint64_t row) {
    group = static_cast<uint32_t>(row % p.groups);
    const uint64_t slots = row / p.groups;
    slot = static_cast<uint32_t>(slots % p.slots);
    const uint64_t pieces = slots / p.slots;
    const auto plane = static_cast<uint32_t>(pieces % p.planes);
    const auto head = static_cast<uint32_t>(pieces / p.planes % p.heads);
    layer = static_cast<uint32_t>(pieces / p.planes / p.heads);
    code = p.codes[plane];
    values = p.values + slots * (p.groups * p.dims + p.exact) + group * p.dims;
    exact = values + (p.groups - group) * p.dims;

    // Bytes per slot of the first plane.
    const uint32_t first_bytes = p.groups * p.dims * RowCodeBits(p.codes[0]) / 8;
    const uint32_t second_bytes = p.groups * p.dims * RowCodeBits(p.codes[1]) / 8;
    const uint32_t pair_bytes = first_bytes + (p.planes == 2 ? second_bytes : 0);
    const uint32_t slot_bytes = plane == 0 ? first_bytes : second_bytes;
    const uint32_t in_layer = (head * p.planes + plane) * p.slots + slot;
    const uint32_t scale_bytes = code <= KvRowCode::kF8E5m2 ? 2 : 4;
    std::byte* start = p.payload + (p.behind_streams ? p.result->streams_end : 0) +
                       uint64_t{layer} * p.layer_bytes;
    codes = start + p.slots * (head * pair_bytes + (plane == 0 ? 0 : first_bytes)) +
            slot * slot_bytes + group * p.dims * RowCodeBits(code) / 8;
    scale = start + p.scales_offset + (in_layer * p.groups + group) * scale_bytes;
    exact_bytes = start + p.exact_offset + in_layer * p.exact * 2;
  }
};

// A row in registers. kElements is the number of elements per lane; kRowElementsMax handles fewer
// too.
template <int kElements>
struct CodecRow {
  int elements;  // existing elements of this lane, at most kElements
  int lane;

  PENSTOCK_DEVICE bool Has(int k) const { return kElements != kRowElementsMax || k < elements; }
  PENSTOCK_DEVICE int order() const {  // HadamardOrder(dims)
    const int dims = elements * 32, lowest = dims & -dims;
    return lowest < 128 ? lowest : 128;
  }

  // The fast Walsh-Hadamard transform, unnormalised, stages in ascending order, in blocks of
  // order().
  template <class T>
  PENSTOCK_DEVICE void Hadamard(T (&x)[kElements]) const {
    PENSTOCK_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) {
      PENSTOCK_UNROLL
      for (int k = 0; k < kElements; ++k) {
        if (!Has(k)) continue;
        const T other = ShuffleXor(x[k], mask);
        x[k] = (lane & mask) != 0 ? Add(other, -x[k]) : Add(x[k], other);
      }
    }
    PENSTOCK_UNROLL
    for (int half = 1; half < 4; half *= 2) {
      PENSTOCK_UNROLL
      for (int k = 0; k + half < kElements; ++k) {
        if ((k & half) != 0 || half * 32 >= order() || !Has(k)) continue;
        const T a = x[k], b = x[k + half];
        x[k] = Add(a, b);
        x[k + half] = Add(a, -b);
      }
    }
  }

  // Byte j has code j in its low nibble and code j + dims / 2 in its high nibble. If a lane has an
  // odd number of elements, the second code is held by the lane 16 further on.
  PENSTOCK_DEVICE void StoreNibbles(const uint32_t (&code)[kElements], std::byte* to) const {
    const int half = elements / 2;
    const bool odd = elements % 2 != 0, upper = lane >= 16;
    PENSTOCK_UNROLL
    for (int k = 0; k < (kElements + 1) / 2; ++k) {
      if (k >= half + (odd ? 1 : 0)) continue;
      uint32_t high = At(code, k + half);
      if (odd) high = ShuffleXor(upper ? high : At(code, k + half + 1), 16);
      if (k < half || !upper) to[k * 32 + lane] = static_cast<std::byte>(code[k] | high << 4);
    }
  }
  PENSTOCK_DEVICE void LoadNibbles(const std::byte* from, uint32_t (&code)[kElements]) const {
    const int half = elements * 16;
    PENSTOCK_UNROLL
    for (int k = 0; k < kElements; ++k) {
      if (!Has(k)) continue;
      const int at = k * 32 + lane;
      const auto pair = static_cast<uint32_t>(from[at < half ? at : at - half]);
      code[k] = at < half ? pair & 15u : pair >> 4;
    }
  }

 private:
  // Selects a register by a run-time index without indexed access; 0 beyond the end.
  static PENSTOCK_DEVICE uint32_t At(const uint32_t (&code)[kElements], int index) {
    uint32_t value = 0;
    PENSTOCK_UNROLL
    for (int k = 0; k < kElements; ++k) value = k == index ? code[k] : value;
    return value;
  }
};

}  // namespace penstock::cuda
