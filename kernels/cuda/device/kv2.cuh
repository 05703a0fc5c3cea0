#pragma once

// The kv2 codec: 2 bits an element, in the layout of kvstore/codec/codec_kv2.cc. One block codes
// one piece (a plane of a head of a block): the groups' scales, then four bytes of codes a thread.

#include "kernels/cpu/kv_quant.h"
#include "kernels/cuda/device/block_ops.cuh"
#include "kernels/cuda/kv_codec.h"

namespace penstock::cuda {

constexpr int kKv2Warps = 4;
constexpr int kKv2Threads = kKv2Warps * 32;
constexpr uint32_t kKv2Group = 32;  // channels per group of a slot of values
constexpr float kKv2ScaleMax = 255.0f;
constexpr float kKv2MinimumMax = 127.0f;

// True if `p` is aligned to `bytes`.
PENSTOCK_DEVICE bool IsAlignedTo(const void* p, uint32_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

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
  // The sizes of all parts of a piece are multiples of 4.
  PENSTOCK_DEVICE uint8_t* scales() const { return bytes + 4; }
  PENSTOCK_DEVICE uint8_t* minima() const { return scales() + groups(); }
  PENSTOCK_DEVICE uint8_t* codes() const { return minima() + groups(); }
  PENSTOCK_DEVICE uint16_t* exact_elements() const {
    return reinterpret_cast<uint16_t*>(codes() + code_bytes());
  }
  // The largest magnitudes of all scales and of all minima, in bf16.
  PENSTOCK_DEVICE uint16_t* tops() const { return reinterpret_cast<uint16_t*>(bytes); }

  // Bits 2 * i of bytes `index` to `index` + 3 of the codes belong to element {SlotOf, DimOf} and
  // its three neighbours.
  PENSTOCK_DEVICE uint32_t SlotOf(uint32_t index, uint32_t i) const {
    return keys ? index / dims * 4 + i : index / (dims / 4);
  }
  PENSTOCK_DEVICE uint32_t DimOf(uint32_t index, uint32_t i) const {
    return keys ? index % dims : index % (dims / 4) + i * (dims / 4);
  }
  // The group of neighbour k of four; neighbours are in groups of their own, or in one.
  PENSTOCK_DEVICE uint32_t GroupOf(uint32_t slot, uint32_t dim, uint32_t k) const {
    return keys ? dim + k : slot * (dims / kKv2Group) + dim / kKv2Group;
  }

 private:
  PENSTOCK_DEVICE uint32_t Groups(bool of_keys) const {
    return of_keys ? dims : slots * (dims / kKv2Group);
  }
  PENSTOCK_DEVICE uint64_t Bytes(bool of_keys) const {
    return 4 + 2 * uint64_t{Groups(of_keys)} + code_bytes() + uint64_t{slots} * exact * 2;
  }
};

PENSTOCK_DEVICE float Clamp(float x, float low, float high) {
  return x < low ? low : x > high ? high : x;
}
// The smallest bf16 that is not below x; x >= 0.
PENSTOCK_DEVICE uint16_t RoundUpToBf16(float x) {
  return static_cast<uint16_t>((FloatToBits(x) + 0xffffu) >> 16);
}

// A group's minimum and scale as a decoder computes them, and the reciprocal of the scale.
struct Kv2Group {
  float minimum = 0, scale = 0, inverse = 0;

  // rint(difference / scale), 0 .. 3.
  PENSTOCK_DEVICE uint32_t LevelOf(float difference) const {
    constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded
    // The quotient by the reciprocal is wrong by less than 4 * 2^-22. Where that might change the
    // level, and where the quotient is not finite, divide.
    float quotient = Multiply(difference, inverse);
    float level = Add(Add(quotient, kMagic), -kMagic);
    if (!(fabsf(Add(quotient, -level)) < 0.49999f)) {
      level = scale == 0 ? 0 : rintf(Divide(difference, scale));
    }
    return FloatToBits(Add(Clamp(level, 0.0f, 3.0f), kMagic)) & 3u;
  }
};

// What the block of an encoder has in shared memory: a board, the groups, and the values where they
// fit.
struct Kv2Shared {
  uint32_t* board;
  Kv2Group* groups;
  Bf16* values;
};
constexpr uint32_t kKv2StagedMax = 32 << 10;  // size of values that fit

constexpr uint32_t Kv2GroupsMax(uint32_t slots, uint32_t dims) {
  const uint32_t of_values = slots * (dims / kKv2Group);
  return of_values > dims ? of_values : dims;
}
constexpr uint32_t Kv2SharedBytes(uint32_t slots, uint32_t dims) {
  const uint32_t values = slots * dims * 2;
  return kKv2Warps * 4 + Kv2GroupsMax(slots, dims) * static_cast<uint32_t>(sizeof(Kv2Group)) +
         (values <= kKv2StagedMax ? values : 0);
}

// The values of a piece, in shared or in global memory.
struct Kv2Values {
  const Bf16* start;
  uint32_t stride;

  PENSTOCK_DEVICE float At(uint32_t slot, uint32_t dim) const {
    return WidenBf16(start[slot * stride + dim].bits);
  }
};

// Copies the values to shared memory, if they fit. Returns them, and in `top` the largest magnitude
// of this thread's values and exact elements, as the bits of a bf16.
PENSTOCK_DEVICE Kv2Values StageKv2(const Kv2Piece& piece, Bf16* shared, uint32_t& top) {
  top = 0;
  const auto see = [&top](uint32_t bits) {
    const uint32_t magnitude = bits & 0x7fffu;
    top = magnitude > top ? magnitude : top;
  };
  const uint32_t stride = piece.stride(), row = piece.dims / 8;
  const bool fits = piece.slots * piece.dims * 2 <= kKv2StagedMax;
  const bool aligned = IsAlignedTo(piece.values, 16) && stride % 8 == 0;
  const uint32_t staged = fits && aligned ? piece.dims : 0;  // elements of a slot
  for (uint32_t i = ThreadX(); i < piece.slots * (staged / 8); i += kKv2Threads) {
    const auto words =
        *reinterpret_cast<const Words4*>(piece.values + i / row * stride + i % row * 8);
    reinterpret_cast<Words4*>(shared)[i] = words;
    PENSTOCK_UNROLL
    for (int w = 0; w < 4; ++w) see(words.word[w]), see(words.word[w] >> 16);
  }
  const uint32_t rest = stride - staged;
  for (uint32_t i = ThreadX(); i < piece.slots * rest; i += kKv2Threads) {
    see(piece.values[i / rest * stride + staged + i % rest].bits);
  }
  if (staged != 0) return {shared, piece.dims};
  return {piece.values, stride};
}

struct Kv2Range {
  float low, high;
};
PENSTOCK_DEVICE Kv2Range RangeOf(const Kv2Piece& piece, const Kv2Values& values, uint32_t group) {
  const uint32_t row = piece.dims / kKv2Group;
  const uint32_t slot = piece.keys ? 0 : group / row;
  const uint32_t dim = piece.keys ? group : group % row * kKv2Group;
  float low = values.At(slot, dim), high = low;
  for (uint32_t i = 0; i < (piece.keys ? piece.slots : kKv2Group); ++i) {
    // The threads of a warp begin at different channels, which are in different banks.
    const uint32_t channel = (i + 2 * group) % kKv2Group;
    const float value = piece.keys ? values.At(i, dim) : values.At(slot, dim + channel);
    low = fminf(low, value);
    high = fmaxf(high, value);
  }
  return {low, high};
}

// Computes the groups, and writes their minima and scales and the magnitudes that they are
// multiples of.
PENSTOCK_DEVICE void EncodeKv2Groups(const Kv2Piece& piece, const Kv2Values& values,
                                     const Kv2Shared& shared) {
  // The bits of non-negative floats have the order of the floats.
  uint32_t magnitude = 0;
  for (uint32_t g = ThreadX(); g < piece.groups(); g += kKv2Threads) {
    const Kv2Range range = RangeOf(piece, values, g);
    const uint32_t bits = FloatToBits(range.low) & 0x7fffffffu;
    magnitude = bits > magnitude ? bits : magnitude;
    shared.groups[g] = {.minimum = range.low, .scale = range.high};  // until they are known
  }
  const uint16_t minimum_top =
      RoundUpToBf16(BitsToFloat(BlockMost<kKv2Warps>(magnitude, shared.board)));
  const float minimum_unit = Divide(WidenBf16(minimum_top), kKv2MinimumMax);
  uint32_t widest = 0;
  for (uint32_t g = ThreadX(); g < piece.groups(); g += kKv2Threads) {
    Kv2Group& group = shared.groups[g];
    const float steps = minimum_unit == 0 ? 0 : floorf(Divide(group.minimum, minimum_unit));
    const auto minimum = static_cast<int8_t>(Clamp(steps, -kKv2MinimumMax, kKv2MinimumMax));
    piece.minima()[g] = static_cast<uint8_t>(minimum);
    group.minimum = Multiply(static_cast<float>(minimum), minimum_unit);
    const float scale = Divide(Add(group.scale, -group.minimum), 3.0f);
    group.scale = scale > 0.0f ? scale : 0.0f;
    widest = FloatToBits(group.scale) > widest ? FloatToBits(group.scale) : widest;
  }
  const uint16_t scale_top = RoundUpToBf16(BitsToFloat(BlockMost<kKv2Warps>(widest, shared.board)));
  const float scale_unit = Divide(WidenBf16(scale_top), kKv2ScaleMax);
  for (uint32_t g = ThreadX(); g < piece.groups(); g += kKv2Threads) {
    Kv2Group& group = shared.groups[g];
    const float steps = scale_unit == 0 ? 0 : ceilf(Divide(group.scale, scale_unit));
    const auto scale = static_cast<uint8_t>(Clamp(steps, 0.0f, kKv2ScaleMax));
    piece.scales()[g] = scale;
    group.scale = Multiply(static_cast<float>(scale), scale_unit);
    group.inverse = Divide(1.0f, group.scale);
  }
  if (ThreadX() == 0) {
    piece.tops()[0] = scale_top;
    piece.tops()[1] = minimum_top;
  }
}

// Four bytes at an address that is aligned to 2 bytes, or to 4.
PENSTOCK_DEVICE uint32_t LoadFour(const uint8_t* from) {
  if (IsAlignedTo(from, 4)) return *reinterpret_cast<const uint32_t*>(from);
  const auto* halves = reinterpret_cast<const uint16_t*>(from);
  return halves[0] | static_cast<uint32_t>(halves[1]) << 16;
}
PENSTOCK_DEVICE void StoreFour(uint8_t* to, uint32_t word) {
  if (IsAlignedTo(to, 4)) {
    *reinterpret_cast<uint32_t*>(to) = word;
    return;
  }
  reinterpret_cast<uint16_t*>(to)[0] = static_cast<uint16_t>(word);
  reinterpret_cast<uint16_t*>(to)[1] = static_cast<uint16_t>(word >> 16);
}

// Four bytes of codes from `index` on.
PENSTOCK_DEVICE uint32_t EncodeFour(const Kv2Piece& piece, const Kv2Values& values,
                                    const Kv2Group* groups, uint32_t index) {
  uint32_t word = 0;
  PENSTOCK_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t slot = piece.SlotOf(index, i), dim = piece.DimOf(index, i);
    PENSTOCK_UNROLL
    for (uint32_t k = 0; k < 4; ++k) {
      const Kv2Group& group = groups[piece.GroupOf(slot, dim, k)];
      const float difference = Add(values.At(slot, dim + k), -group.minimum);
      word |= group.LevelOf(difference) << (8 * k + 2 * i);
    }
  }
  return word;
}

// Grid: pieces. Shared memory: Kv2SharedBytes.
__global__ void __launch_bounds__(kKv2Threads)
    EncodeKv2Kernel(const __grid_constant__ Kv2Params p) {
  const Kv2Piece piece(p, static_cast<uint32_t>(BlockX()));
  Kv2Shared shared;
  shared.board = reinterpret_cast<uint32_t*>(SharedMemory());
  shared.values = reinterpret_cast<Bf16*>(shared.board + kKv2Warps);
  const uint32_t staged = piece.slots * piece.dims * 2;
  shared.groups = reinterpret_cast<Kv2Group*>(reinterpret_cast<std::byte*>(shared.values) +
                                              (staged <= kKv2StagedMax ? staged : 0));
  uint32_t top = 0;
  const Kv2Values values = StageKv2(piece, shared.values, top);
  if (BlockMost<kKv2Warps>(top, shared.board) >> 7 >= kQuantisedExponentMax) {
    if (ThreadX() == 0) {
      AtomicMin(&p.result->fault, PackKvFault(KvFault::kValues, piece.layer));
    }
    return;
  }
  EncodeKv2Groups(piece, values, shared);
  SyncBlock();
  for (uint32_t index = ThreadX() * 4; index < piece.code_bytes(); index += kKv2Threads * 4) {
    StoreFour(piece.codes() + index, EncodeFour(piece, values, shared.groups, index));
  }
  for (uint32_t i = ThreadX(); i < piece.slots * piece.exact; i += kKv2Threads) {
    const uint32_t from = i / piece.exact * piece.stride() + piece.dims + i % piece.exact;
    piece.exact_elements()[i] = piece.values[from].bits;
  }
}

// The scales and minima of four neighbouring elements.
struct Kv2Four {
  uint32_t scales, minima;  // a byte each

  PENSTOCK_DEVICE Kv2Four(const Kv2Piece& piece, uint32_t slot, uint32_t dim) {
    const uint32_t group = piece.GroupOf(slot, dim, 0);
    if (piece.keys) {
      scales = LoadFour(piece.scales() + group);
      minima = LoadFour(piece.minima() + group);
    } else {
      scales = piece.scales()[group] * 0x01010101u;
      minima = piece.minima()[group] * 0x01010101u;
    }
  }
  PENSTOCK_DEVICE float Scale(uint32_t k, float unit) const {
    return Multiply(static_cast<float>(scales >> (8 * k) & 0xffu), unit);
  }
  PENSTOCK_DEVICE float Minimum(uint32_t k, float unit) const {
    return Multiply(static_cast<float>(static_cast<int8_t>(minima >> (8 * k) & 0xffu)), unit);
  }
};

PENSTOCK_DEVICE void StoreValues(Bf16* to, const float (&x)[4]) {
  const Words2 words = {{PackBf16(x[0], x[1]), PackBf16(x[2], x[3])}};
  if (IsAlignedTo(to, 8)) return Store(to, words);
  PENSTOCK_UNROLL
  for (int k = 0; k < 4; ++k) to[k].bits = static_cast<uint16_t>(words.word[k / 2] >> (k % 2 * 16));
}

// Grid: pieces.
__global__ void __launch_bounds__(kKv2Threads)
    DecodeKv2Kernel(const __grid_constant__ Kv2Params p) {
  const Kv2Piece piece(p, static_cast<uint32_t>(BlockX()));
  const float scale_unit = Divide(WidenBf16(piece.tops()[0]), kKv2ScaleMax);
  const float minimum_unit = Divide(WidenBf16(piece.tops()[1]), kKv2MinimumMax);
  for (uint32_t index = ThreadX() * 4; index < piece.code_bytes(); index += kKv2Threads * 4) {
    const uint32_t codes = LoadFour(piece.codes() + index);
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t slot = piece.SlotOf(index, i), dim = piece.DimOf(index, i);
      const Kv2Four four(piece, slot, dim);
      float x[4];
      PENSTOCK_UNROLL
      for (uint32_t k = 0; k < 4; ++k) {
        const auto level = static_cast<float>(codes >> (8 * k + 2 * i) & 3u);
        x[k] = Add(Multiply(level, four.Scale(k, scale_unit)), four.Minimum(k, minimum_unit));
      }
      StoreValues(piece.values + slot * piece.stride() + dim, x);
    }
  }
  for (uint32_t i = ThreadX(); i < piece.slots * piece.exact; i += kKv2Threads) {
    const uint32_t to = i / piece.exact * piece.stride() + piece.dims + i % piece.exact;
    piece.values[to].bits = piece.exact_elements()[i];
  }
}

}  // namespace penstock::cuda
