#pragma once

// Keys and values of tokens that are re-used at other positions (kernels/blend/move_tokens.cc), and
// how far re-used values are from computed ones (kernels/blend/deviation.cc).
//
// This room has the kernels for blends. It may use kernels/cuda/blend and kernels/cuda/device.

#include "kernels/cuda/blend/blend.h"
#include "kernels/cuda/device/device.cuh"

namespace penstock::cuda {

constexpr int kBlendThreads = 128, kBlendWarps = kBlendThreads / 32;

// The row of a head in a slot of a plane.
PENSTOCK_DEVICE std::byte* RowOfSlot(const KvPlanes& kv, const KvPlane& plane, int64_t slot,
                                     int head) {
  const int64_t place = slot & ((1 << kv.page_log2) - 1);
  return kv.layer + (slot >> kv.page_log2) * kv.block_stride + plane.offset +
         head * plane.head_stride + place * plane.row_bytes;
}

// Calls visit(head, chunk) for this thread's chunks of 16 bytes of the rows of all heads.
template <class Visit>
PENSTOCK_DEVICE void ForChunks(const KvPlanes& kv, const Visit& visit) {
  const int chunks = kv.head_dim / 8;
  for (int i = ThreadX(); i < kv.kv_heads * chunks; i += kBlendThreads) {
    visit(i / chunks, i % chunks);
  }
}

PENSTOCK_DEVICE void CopyRows(const KvPlanes& kv, const KvPlane& plane, int64_t from, int64_t to) {
  ForChunks(kv, [&](int head, int chunk) {
    const std::byte* source = RowOfSlot(kv, plane, from, head) + chunk * 16;
    Store(RowOfSlot(kv, plane, to, head) + chunk * 16, *reinterpret_cast<const Words4*>(source));
  });
}

PENSTOCK_DEVICE void TurnRows(const KvPlanes& kv, const KeyTurns& turns, int token, int64_t from,
                              int64_t to) {
  const float* cosines = turns.cosines + static_cast<int64_t>(token) * turns.pairs;
  const float* sines = turns.sines + static_cast<int64_t>(token) * turns.pairs;
  const int kept = kv.head_dim - turns.pairs;  // pairs, and elements that are not rotated
  for (int i = ThreadX(); i < kv.kv_heads * kept; i += kBlendThreads) {
    const int head = i / kept, d = i % kept;
    const auto* source = reinterpret_cast<const Bf16*>(RowOfSlot(kv, kv.keys, from, head));
    auto* target = reinterpret_cast<Bf16*>(RowOfSlot(kv, kv.keys, to, head));
    if (d >= turns.pairs) {
      target[d + turns.pairs] = source[d + turns.pairs];
      continue;
    }
    const float x = WidenBf16(source[d].bits), y = WidenBf16(source[d + turns.pairs].bits);
    const float c = cosines[d], s = sines[d];
    target[d].bits = RoundBf16(Add(Multiply(x, c), -Multiply(y, s)));
    target[d + turns.pairs].bits = RoundBf16(Add(Multiply(y, c), Multiply(x, s)));
  }
}

// Grid: tokens x layers.
__global__ void __launch_bounds__(kBlendThreads)
    MoveTokensKernel(const __grid_constant__ MoveTokensParams p) {
  const int token = BlockX(), layer = BlockY();
  KvPlanes kv = p.kv;
  kv.layer += layer * p.layer_stride;
  const int64_t from = p.from[token], to = p.to[token];
  CopyRows(kv, kv.values, from, to);
  const int turns = p.turns_of[layer];
  if (turns < 0) return CopyRows(kv, kv.keys, from, to);
  TurnRows(kv, turns == 0 ? p.turns[0] : p.turns[1], token, from, to);
}

// Grid: rows.
__global__ void __launch_bounds__(kBlendThreads)
    ReadValuesKernel(const __grid_constant__ ValuesParams p) {
  const int64_t slot = p.slots[BlockX()];
  Bf16* to = p.values + static_cast<int64_t>(BlockX()) * p.kv.kv_heads * p.kv.head_dim;
  ForChunks(p.kv, [&](int head, int chunk) {
    const std::byte* source = RowOfSlot(p.kv, p.kv.values, slot, head) + chunk * 16;
    Store(to + head * p.kv.head_dim + chunk * 8, *reinterpret_cast<const Words4*>(source));
  });
}

struct Squares {
  float differences = 0, values = 0;

  PENSTOCK_DEVICE void AddPair(float was, float is) {
    const float difference = Add(is, -was);
    differences = Add(differences, Multiply(difference, difference));
    values = Add(values, Multiply(is, is));
  }
  PENSTOCK_DEVICE void Take(const Squares& other) {
    differences = Add(differences, other.differences);
    values = Add(values, other.values);
  }
};

// Grid: rows.
__global__ void __launch_bounds__(kBlendThreads)
    CompareValuesKernel(const __grid_constant__ ValuesParams p) {
  auto* shared = reinterpret_cast<Squares*>(SharedMemory());
  const int64_t slot = p.slots[BlockX()];
  const Bf16* before = p.values + static_cast<int64_t>(BlockX()) * p.kv.kv_heads * p.kv.head_dim;
  Squares sum;
  ForChunks(p.kv, [&](int head, int chunk) {
    const auto was = *reinterpret_cast<const Words4*>(before + head * p.kv.head_dim + chunk * 8);
    const auto is =
        *reinterpret_cast<const Words4*>(RowOfSlot(p.kv, p.kv.values, slot, head) + chunk * 16);
    PENSTOCK_UNROLL
    for (int w = 0; w < 4; ++w) {
      sum.AddPair(LowBf16(was.word[w]), LowBf16(is.word[w]));
      sum.AddPair(HighBf16(was.word[w]), HighBf16(is.word[w]));
    }
  });
  PENSTOCK_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) {
    sum.Take({ShuffleXor(sum.differences, mask), ShuffleXor(sum.values, mask)});
  }
  if (ThreadX() % 32 == 0) shared[ThreadX() / 32] = sum;
  SyncBlock();
  if (ThreadX() != 0) return;
  for (int w = 1; w < kBlendWarps; ++w) sum.Take(shared[w]);
  p.squares[2 * BlockX()] = sum.differences;
  p.squares[2 * BlockX() + 1] = sum.values;
}

}  // namespace penstock::cuda
