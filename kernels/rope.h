#pragma once

#include <span>

#include "kernels/device.h"
#include "kernels/paged_kv.h"
#include "kernels/view.h"

namespace penstock {

// Where the keys and values of a token go.
struct KvSlot {
  uint32_t block = 0;
  int32_t slot = 0;
};

struct RopeAppendArgs {
  View<float, 2> qkv;            // [tokens, (heads + 2 * kv_heads) * head_dim]; queries and keys
                                 // are rotated in place
  View<const float, 2> cosines;  // [tokens, head_dim / 2], of each token's position
  View<const float, 2> sines;
  int32_t heads = 0;
  PagedKv kv;  // its layout gives kv_heads and head_dim
  int32_t layer = 0;
  std::span<const KvSlot> slots;  // one per token, no two equal
};

namespace cpu {
void RopeAppend(const Exec& exec, const RopeAppendArgs& args);
}

// Rotates dimension i against i + head_dim / 2 (as Hugging Face checkpoints have it), then writes
// keys and values to their pages, rounded to bf16 and then to the pages' format.
inline void RopeAppend(const Exec& exec, const RopeAppendArgs& args) {
  cpu::RopeAppend(exec, args);
}

}  // namespace penstock
