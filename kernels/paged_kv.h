#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bf16.h"

namespace penstock {

// The resident format of keys and values in pages.
enum class KvDtype : uint8_t { kBf16 = 1 };

// The geometry of a block ("page"): [layer][kv_head][K|V][slot][head_dim]. One block of all layers
// is one contiguous piece, and so is a range of layers of it, and a range of heads of a layer.
struct KvLayout {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 16;
  KvDtype dtype = KvDtype::kBf16;

  // All in bytes.
  size_t PlaneBytes() const {  // K or V of one head: [slot][head_dim]
    return static_cast<size_t>(block_tokens) * head_dim * sizeof(Bf16);
  }
  size_t LayerBytes() const { return static_cast<size_t>(kv_heads) * 2 * PlaneBytes(); }
  size_t PayloadBytes() const { return static_cast<size_t>(layers) * LayerBytes(); }
  // From one block to the next in an arena: a multiple of 4,096, so that direct I/O can move
  // blocks.
  size_t BlockStride() const { return (PayloadBytes() + 4095) / 4096 * 4096; }

  int64_t BlocksFor(int64_t tokens) const { return (tokens + block_tokens - 1) / block_tokens; }

  // Equal on both sides of a transfer, or there is no transfer. Depends on every field.
  uint64_t Fingerprint() const {
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over the fields, a stable 64-bit value.
    for (const int64_t field : {int64_t{layers}, int64_t{kv_heads}, int64_t{head_dim},
                                int64_t{block_tokens}, static_cast<int64_t>(dtype)}) {
      for (int shift = 0; shift < 64; shift += 8) {
        hash = (hash ^ static_cast<uint64_t>((field >> shift) & 0xff)) * 0x100000001b3u;
      }
    }
    return hash;
  }

  bool operator==(const KvLayout&) const = default;
};

// A view of an arena of blocks. Owns nothing; kvstore's BlockPool makes it, the forward pass and
// the handoff read and write through it. Which sequence owns a block is not its business.
struct PagedKv {
  std::byte* arena = nullptr;  // 4,096-byte aligned
  int64_t blocks = 0;
  KvLayout layout;

  std::byte* Block(uint32_t block) const { return arena + block * layout.BlockStride(); }
  std::byte* Layer(uint32_t block, int32_t layer) const {
    return Block(block) + static_cast<size_t>(layer) * layout.LayerBytes();
  }
  // [slot][head_dim]
  Bf16* Keys(uint32_t block, int32_t layer, int32_t kv_head) const {
    return reinterpret_cast<Bf16*>(Layer(block, layer) +
                                   static_cast<size_t>(kv_head) * 2 * layout.PlaneBytes());
  }
  // [slot][head_dim]
  Bf16* Values(uint32_t block, int32_t layer, int32_t kv_head) const {
    return reinterpret_cast<Bf16*>(Layer(block, layer) +
                                   (static_cast<size_t>(kv_head) * 2 + 1) * layout.PlaneBytes());
  }
};

}  // namespace penstock
