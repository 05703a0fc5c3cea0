#pragma once

#include <span>

#include "kernels/device.h"
#include "kernels/paged_kv.h"
#include "kernels/view.h"

namespace penstock {

// The page and the slot in it that receive the key and value of a token.
struct KvSlot {
  uint32_t block = 0;
  int32_t slot = 0;
};

struct RopeAppendArgs {
  // [tokens, (heads + 2 * kv_heads) * head_dim]: queries, keys, values. Queries and keys are
  // rotated in place.
  View<float, 2> qkv;
  View<const float, 2> cosines;  // [tokens, rotated pairs], for each token's position
  View<const float, 2> sines;    // [tokens, rotated pairs]
  int32_t heads = 0;
  PagedKv kv;  // its layout gives kv_heads and head_dim
  int32_t layer = 0;
  std::span<const KvSlot> slots;  // one per token, no two equal
  // [kv_heads, head_dim]: the means of keys, before their rotation, which centred pages leave out.
  View<const float, 2> key_means = {};
};

struct RopeArgs {
  View<float, 2> rows;           // [tokens, at least heads * head_dim], rotated in place
  View<const float, 2> cosines;  // [tokens, rotated pairs]
  View<const float, 2> sines;    // [tokens, rotated pairs]
  int32_t heads = 0;
  int32_t head_dim = 0;
};

namespace cpu {
void Rope(const Exec& exec, const RopeArgs& args);
void RopeAppend(const Exec& exec, const RopeAppendArgs& args);
}  // namespace cpu

// Rotary position embedding (RoPE: Su et al., arXiv 2104.09864). Rotates dimension i against
// dimension i + pairs, the convention of Hugging Face checkpoints; dimensions from 2 * pairs on
// stay as they are, so that no pairs mean no rotation.
inline void Rope(const Exec& exec, const RopeArgs& args) { cpu::Rope(exec, args); }

// Rotates queries and keys as Rope does. Then writes keys and values to their pages,
// rounded to bf16 and then coded in the pages' format.
inline void RopeAppend(const Exec& exec, const RopeAppendArgs& args) {
  cpu::RopeAppend(exec, args);
}

}  // namespace penstock
