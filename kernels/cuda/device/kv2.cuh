#pragma once

// The kv2 codec: 2 bits an element, in the layout of kvstore/codec/codec_kv2.cc. One block codes
// one piece (a plane of a head of a block); first each thread computes one group's scale, then one
// byte of codes. The encoder reads scales and minima back from the payload, so that it uses the
// values that a decoder will see.

#include "kernels/cpu/kv_quant.h"
#include "kernels/cuda/device/block_ops.cuh"
#include "kernels/cuda/kv_codec.h"

namespace penstock::cuda {

constexpr int kKv2Warps = 4;
constexpr int kKv2Threads = kKv2Warps * 32;
constexpr uint32_t kKv2Group = 32;  // channels per group of a slot of values
constexpr float kKv2ScaleMax = 255.0f;
constexpr float kKv2MinimumMax = 127.0f;

struct Kv2Range {
  float low, high;
};

struct Kv2Piece {
  uint32_t slots, dims, exact, layer;
  bool keys;
  Bf16* values;
  uint8_t* bytes;

  PENSTOCK_DEVICE Kv2Piece(const Kv2Params& p, uint32_t index)
      : slots(p.slots), dims(p.dims), exact(p.exact) {
    const uint32_t plane = index % p.planes, head = index / p.planes % p.heads;
    layer = index / p.planes / p.heads;
    keys = p.planes == 2 && plane == 0;
    values = p.values + uint64_t{index} * slots * stride();
    const uint64_t pair = Bytes(p.planes == 2) + (p.planes == 2 ? Bytes(false) : 0);
    bytes = reinterpret_cast<uint8_t*>(p.payload) + (uint64_t{layer} * p.heads + head) * pair +
            (plane == 0 ? 0 : Bytes(true));
  }

  PENSTOCK_DEVICE uint32_t stride() const { return dims + exact; }
  PENSTOCK_DEVICE uint32_t groups() const { return Groups(keys); }
  PENSTOCK_DEVICE uint32_t code_bytes() const { return slots * dims / 4; }
  PENSTOCK_DEVICE uint8_t* scales() const { return bytes + 4; }
  PENSTOCK_DEVICE uint8_t* minima() const { return scales() + groups(); }
  PENSTOCK_DEVICE uint8_t* codes() const { return minima() + groups(); }
  PENSTOCK_DEVICE uint16_t* exact_elements() const {
    return reinterpret_cast<uint16_t*>(codes() + code_bytes());
  }
  // The largest magnitudes of all scales and of all minima, in bf16.
  PENSTOCK_DEVICE uint16_t* tops() const { return reinterpret_cast<uint16_t*>(bytes); }

  PENSTOCK_DEVICE uint32_t GroupOf(uint32_t slot, uint32_t dim) const {
    return keys ? dim : slot * (dims / kKv2Group) + dim / kKv2Group;
  }
  PENSTOCK_DEVICE float At(uint32_t slot, uint32_t dim) const {
    return WidenBf16(values[slot * stride() + dim].bits);
  }
  PENSTOCK_DEVICE Kv2Range RangeOf(uint32_t group) const {
    const uint32_t row = dims / kKv2Group;
    const uint32_t slot = keys ? 0 : group / row, dim = keys ? group : group % row * kKv2Group;
    float low = At(slot, dim), high = low;
    for (uint32_t i = 1; i < (keys ? slots : kKv2Group); ++i) {
      const float value = keys ? At(i, dim) : At(slot, dim + i);
      low = value < low ? value : low;
      high = value > high ? value : high;
    }
    return {low, high};
  }
  // The slot of the elements in bits 2 * i of byte `index` of the codes.
  PENSTOCK_DEVICE uint32_t SlotOf(uint32_t index, uint32_t i) const {
    return keys ? index / dims * 4 + i : index / (dims / 4);
  }
  PENSTOCK_DEVICE uint32_t DimOf(uint32_t index, uint32_t i) const {
    return keys ? index % dims : index % (dims / 4) + i * (dims / 4);
  }

 private:
  PENSTOCK_DEVICE uint32_t Groups(bool of_keys) const {
    return of_keys ? dims : slots * (dims / kKv2Group);
  }
  PENSTOCK_DEVICE uint64_t Bytes(bool of_keys) const {
    return 4 + 2 * uint64_t{Groups(of_keys)} + code_bytes() + uint64_t{slots} * exact * 2;
  }
};

// Scale and minimum of every group, as a decoder computes them.
struct Kv2Units {
  float scale, minimum;

  PENSTOCK_DEVICE explicit Kv2Units(const Kv2Piece& piece)
      : scale(Divide(WidenBf16(piece.tops()[0]), kKv2ScaleMax)),
        minimum(Divide(WidenBf16(piece.tops()[1]), kKv2MinimumMax)) {}
  PENSTOCK_DEVICE float Scale(const Kv2Piece& piece, uint32_t group) const {
    return Multiply(static_cast<float>(piece.scales()[group]), scale);
  }
  PENSTOCK_DEVICE float Minimum(const Kv2Piece& piece, uint32_t group) const {
    return Multiply(static_cast<float>(static_cast<int8_t>(piece.minima()[group])), minimum);
  }
};

PENSTOCK_DEVICE float Clamp(float x, float low, float high) {
  return x < low ? low : x > high ? high : x;
}
// The smallest bf16 that is not below x; x >= 0.
PENSTOCK_DEVICE uint16_t RoundUpToBf16(float x) {
  return static_cast<uint16_t>((FloatToBits(x) + 0xffffu) >> 16);
}

PENSTOCK_DEVICE bool FitsKv2(const Kv2Piece& piece, uint32_t* board) {
  uint32_t max = 0;
  for (uint32_t i = ThreadX(); i < piece.slots * piece.stride(); i += kKv2Threads) {
    const uint32_t magnitude = piece.values[i].bits & 0x7fffu;
    max = magnitude > max ? magnitude : max;
  }
  return BlockMost<kKv2Warps>(max, board) >> 7 < kQuantisedExponentMax;
}

// Writes the groups' minima and scales, and the magnitudes that they are multiples of.
PENSTOCK_DEVICE void EncodeKv2Groups(const Kv2Piece& piece, uint32_t* board) {
  // The bits of non-negative floats have the order of the floats.
  uint32_t magnitude = 0;
  for (uint32_t g = ThreadX(); g < piece.groups(); g += kKv2Threads) {
    const uint32_t bits = FloatToBits(piece.RangeOf(g).low) & 0x7fffffffu;
    magnitude = bits > magnitude ? bits : magnitude;
  }
  const uint16_t minimum_top = RoundUpToBf16(BitsToFloat(BlockMost<kKv2Warps>(magnitude, board)));
  const float minimum_unit = Divide(WidenBf16(minimum_top), kKv2MinimumMax);
  const auto scale_of = [&](const Kv2Range& range, float minimum) {
    const float scale = Divide(Add(range.high, -Multiply(minimum, minimum_unit)), 3.0f);
    return scale > 0.0f ? scale : 0.0f;
  };
  uint32_t widest = 0;
  for (uint32_t g = ThreadX(); g < piece.groups(); g += kKv2Threads) {
    const Kv2Range range = piece.RangeOf(g);
    const float steps = minimum_unit == 0 ? 0 : floorf(Divide(range.low, minimum_unit));
    const float minimum = Clamp(steps, -kKv2MinimumMax, kKv2MinimumMax);
    piece.minima()[g] = static_cast<uint8_t>(static_cast<int8_t>(minimum));
    const uint32_t scale = FloatToBits(scale_of(range, minimum));
    widest = scale > widest ? scale : widest;
  }
  const uint16_t scale_top = RoundUpToBf16(BitsToFloat(BlockMost<kKv2Warps>(widest, board)));
  const float scale_unit = Divide(WidenBf16(scale_top), kKv2ScaleMax);
  for (uint32_t g = ThreadX(); g < piece.groups(); g += kKv2Threads) {
    const auto minimum = static_cast<float>(static_cast<int8_t>(piece.minima()[g]));
    const float scale = scale_of(piece.RangeOf(g), minimum);
    const float steps = scale_unit == 0 ? 0 : ceilf(Divide(scale, scale_unit));
    piece.scales()[g] = static_cast<uint8_t>(Clamp(steps, 0.0f, kKv2ScaleMax));
  }
  if (ThreadX() == 0) {
    piece.tops()[0] = scale_top;
    piece.tops()[1] = minimum_top;
  }
}

// Grid: pieces. Shared memory: one board.
__global__ void __launch_bounds__(kKv2Threads)
    EncodeKv2Kernel(const __grid_constant__ Kv2Params p) {
  auto* board = reinterpret_cast<uint32_t*>(SharedMemory());
  const Kv2Piece piece(p, static_cast<uint32_t>(BlockX()));
  if (!FitsKv2(piece, board)) {
    if (ThreadX() == 0) {
      AtomicMin(&p.result->fault, PackKvFault(KvFault::kValues, piece.layer));
    }
    return;
  }
  EncodeKv2Groups(piece, board);
  SyncBlock();
  const Kv2Units units(piece);
  for (uint32_t index = ThreadX(); index < piece.code_bytes(); index += kKv2Threads) {
    uint32_t byte = 0;
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t slot = piece.SlotOf(index, i), dim = piece.DimOf(index, i);
      const uint32_t group = piece.GroupOf(slot, dim);
      const float scale = units.Scale(piece, group);
      const float value = Add(piece.At(slot, dim), -units.Minimum(piece, group));
      const float level = scale == 0 ? 0 : Clamp(rintf(Divide(value, scale)), 0.0f, 3.0f);
      byte |= static_cast<uint32_t>(level) << (2 * i);
    }
    piece.codes()[index] = static_cast<uint8_t>(byte);
  }
  for (uint32_t i = ThreadX(); i < piece.slots * piece.exact; i += kKv2Threads) {
    const uint32_t from = i / piece.exact * piece.stride() + piece.dims + i % piece.exact;
    piece.exact_elements()[i] = piece.values[from].bits;
  }
}

// Grid: pieces.
__global__ void __launch_bounds__(kKv2Threads)
    DecodeKv2Kernel(const __grid_constant__ Kv2Params p) {
  const Kv2Piece piece(p, static_cast<uint32_t>(BlockX()));
  const Kv2Units units(piece);
  for (uint32_t index = ThreadX(); index < piece.code_bytes(); index += kKv2Threads) {
    const uint32_t byte = piece.codes()[index];
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t slot = piece.SlotOf(index, i), dim = piece.DimOf(index, i);
      const uint32_t group = piece.GroupOf(slot, dim);
      const auto level = static_cast<float>(byte >> (2 * i) & 3u);
      piece.values[slot * piece.stride() + dim].bits =
          RoundBf16(Add(Multiply(level, units.Scale(piece, group)), units.Minimum(piece, group)));
    }
  }
  for (uint32_t i = ThreadX(); i < piece.slots * piece.exact; i += kKv2Threads) {
    const uint32_t to = i / piece.exact * piece.stride() + piece.dims + i % piece.exact;
    piece.values[to].bits = piece.exact_elements()[i];
  }
}

}  // namespace penstock::cuda
