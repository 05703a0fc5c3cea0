#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/bf16.h"

namespace penstock {

// The resident format of keys and values in pages. All but kBf16 keep a scale for every head of
// every token (kv_quant.h): kF8 is e4m3, kI8 and the four-bit planes of kI4r and kK8v4 have a
// minimum too. The keys of kI4r are rotated.
enum class KvDtype : uint8_t { kBf16 = 1, kF8 = 2, kI8 = 3, kI4r = 4, kK8v4 = 5 };

// As in flags and BlockNamespace: "bf16", "f8", "i8", "i4r", "k8v4".
constexpr std::string_view KvDtypeName(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kBf16:
      return "bf16";
    case KvDtype::kF8:
      return "f8";
    case KvDtype::kI8:
      return "i8";
    case KvDtype::kI4r:
      return "i4r";
    case KvDtype::kK8v4:
      return "k8v4";
  }
  return "unknown";
}

inline constexpr KvDtype kKvDtypes[] = {KvDtype::kBf16, KvDtype::kF8, KvDtype::kI8, KvDtype::kI4r,
                                        KvDtype::kK8v4};

constexpr std::optional<KvDtype> KvDtypeOf(std::string_view name) {
  for (const KvDtype dtype : kKvDtypes) {
    if (KvDtypeName(dtype) == name) return dtype;
  }
  return std::nullopt;
}

enum class KvPlane : uint8_t { kKeys = 0, kValues = 1 };

// The geometry of a block ("page"). A layer of it is codes [kv_head][K|V][slot][row], then, where
// the format has them, scales [kv_head][K|V][slot]. One block of all layers is one contiguous
// piece, and so is a range of layers of it.
struct KvLayout {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;  // a multiple of 16, unless dtype is kBf16
  int32_t block_tokens = 16;
  KvDtype dtype = KvDtype::kBf16;

  bool HasFourBits(KvPlane plane) const {
    return dtype == KvDtype::kI4r || (dtype == KvDtype::kK8v4 && plane == KvPlane::kValues);
  }

  // All in bytes.
  size_t RowBytes(KvPlane plane) const {  // codes of one head of one token
    const auto dims = static_cast<size_t>(head_dim);
    if (dtype == KvDtype::kBf16) return dims * sizeof(Bf16);
    return HasFourBits(plane) ? dims / 2 : dims;
  }
  size_t ScaleBytes() const {  // of one such row
    if (dtype == KvDtype::kBf16) return 0;
    return dtype == KvDtype::kF8 ? sizeof(Bf16) : 2 * sizeof(Bf16);
  }
  size_t PlaneBytes(KvPlane plane) const {  // codes of one head: [slot][row]
    return static_cast<size_t>(block_tokens) * RowBytes(plane);
  }
  size_t HeadBytes() const { return PlaneBytes(KvPlane::kKeys) + PlaneBytes(KvPlane::kValues); }
  size_t LayerBytes() const {
    return static_cast<size_t>(kv_heads) *
           (HeadBytes() + 2 * static_cast<size_t>(block_tokens) * ScaleBytes());
  }
  size_t PayloadBytes() const { return static_cast<size_t>(layers) * LayerBytes(); }
  // From one block to the next in an arena: a multiple of 4,096, so that direct I/O can move
  // blocks.
  size_t BlockStride() const { return (PayloadBytes() + 4095) / 4096 * 4096; }

  // Of a row from its layer's first byte.
  size_t CodesAt(int32_t kv_head, KvPlane plane, int64_t slot) const {
    const size_t start = static_cast<size_t>(kv_head) * HeadBytes() +
                         (plane == KvPlane::kKeys ? 0 : PlaneBytes(KvPlane::kKeys));
    return start + static_cast<size_t>(slot) * RowBytes(plane);
  }
  size_t ScalesAt(int32_t kv_head, KvPlane plane, int64_t slot) const {
    const size_t row = (static_cast<size_t>(kv_head) * 2 + static_cast<size_t>(plane)) *
                           static_cast<size_t>(block_tokens) +
                       static_cast<size_t>(slot);
    return static_cast<size_t>(kv_heads) * HeadBytes() + row * ScaleBytes();
  }

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

class PageCopier;

// A view of an arena of blocks. Owns nothing; kvstore's BlockPool makes it, the forward pass and
// the handoff read and write through it. Which sequence owns a block is not its business.
struct PagedKv {
  std::byte* arena = nullptr;  // 4,096-byte aligned
  int64_t blocks = 0;
  KvLayout layout;
  PageCopier* copier = nullptr;  // of an arena in a GPU's memory (page_copier.h), else null

  std::byte* Block(uint32_t block) const { return arena + block * layout.BlockStride(); }
  std::byte* Layer(uint32_t block, int32_t layer) const {
    return Block(block) + static_cast<size_t>(layer) * layout.LayerBytes();
  }
  // [slot][head_dim] of pages in bf16.
  Bf16* Keys(uint32_t block, int32_t layer, int32_t kv_head) const {
    return reinterpret_cast<Bf16*>(Layer(block, layer) +
                                   layout.CodesAt(kv_head, KvPlane::kKeys, 0));
  }
  Bf16* Values(uint32_t block, int32_t layer, int32_t kv_head) const {
    return reinterpret_cast<Bf16*>(Layer(block, layer) +
                                   layout.CodesAt(kv_head, KvPlane::kValues, 0));
  }
};

}  // namespace penstock
