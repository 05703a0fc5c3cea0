#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#include "kernels/bf16.h"
#include "kernels/window_group.h"

namespace penstock {

// The resident format of keys and values in pages. Every format except kBf16 keeps a scale for each
// head of each token (kv_quant.h). kF8 is e4m3. kI8 and the four-bit planes of kI4r and kK8v4 keep
// a minimum too. kI4r stores rotated keys. kK3v3 and kK3v2 store rotated keys and values, as levels
// of a normal distribution, in as many bits as the name says for each.
enum class KvDtype : uint8_t {
  kBf16 = 1,
  kF8 = 2,
  kI8 = 3,
  kI4r = 4,
  kK8v4 = 5,
  kK3v3 = 6,
  kK3v2 = 7
};

// The name of a format in flags and in BlockNamespace, such as "bf16" or "k8v4".
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
    case KvDtype::kK3v3:
      return "k3v3";
    case KvDtype::kK3v2:
      return "k3v2";
  }
  return "unknown";
}

inline constexpr KvDtype kKvDtypes[] = {KvDtype::kBf16, KvDtype::kF8,   KvDtype::kI8,
                                        KvDtype::kI4r,  KvDtype::kK8v4, KvDtype::kK3v3,
                                        KvDtype::kK3v2};
// Those that kernels of GPUs read and write.
inline constexpr KvDtype kGpuKvDtypes[] = {KvDtype::kBf16, KvDtype::kF8, KvDtype::kI8,
                                           KvDtype::kI4r, KvDtype::kK8v4};
constexpr bool GpusHold(KvDtype dtype) {
  return std::find(std::begin(kGpuKvDtypes), std::end(kGpuKvDtypes), dtype) !=
         std::end(kGpuKvDtypes);
}

constexpr std::optional<KvDtype> KvDtypeOf(std::string_view name) {
  for (const KvDtype dtype : kKvDtypes) {
    if (KvDtypeName(dtype) == name) return dtype;
  }
  return std::nullopt;
}

enum class KvPlane : uint8_t { kKeys = 0, kValues = 1 };

// The bits of a code, without its share of the scale.
constexpr int32_t CodeBits(KvDtype dtype, KvPlane plane) {
  const bool keys = plane == KvPlane::kKeys;
  switch (dtype) {
    case KvDtype::kBf16:
      return 16;
    case KvDtype::kF8:
    case KvDtype::kI8:
      return 8;
    case KvDtype::kK8v4:
      return keys ? 8 : 4;
    case KvDtype::kI4r:
      return 4;
    case KvDtype::kK3v3:
      return 3;
    case KvDtype::kK3v2:
      return keys ? 3 : 2;
  }
  return 0;
}

// True for formats of 2 and 3 bits, whose codes are levels (kv_quant.h).
constexpr bool HasLevels(KvDtype dtype) { return CodeBits(dtype, KvPlane::kValues) < 4; }

// The geometry of a block ("page"). A layer consists of codes [kv_head][K|V][slot][row] and, if the
// format has scales, scales [kv_head][K|V][slot]. All layers of a block are contiguous, and so is
// any range of its layers.
//
// Pages of latents (multi-head latent attention) have one plane, [slot][row], that all heads share:
// a row is the latent and then the rotated key, in bf16. Attention takes the whole row as key and
// its latent as value.
struct KvLayout {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;  // a multiple of 16, unless dtype is kBf16
  int32_t block_tokens = 16;
  KvDtype dtype = KvDtype::kBf16;
  // The tokens that a query of any layer sees at most, its own included. 0: a layer sees all.
  int32_t window = 0;
  // Elements of the rotated key at the end of a row of latents; 0: pages have keys and values.
  int32_t latent_rope_dim = 0;
  // The layers with a window of a model whose other layers see all tokens; `window` is 0 then.
  WindowGroup group = {};

  bool HasLatents() const { return latent_rope_dim > 0; }
  int32_t Planes() const { return HasLatents() ? 1 : 2; }
  int32_t ValueDim() const { return head_dim - latent_rope_dim; }  // of what attention adds up

  // True if the pages store the plane's rows rotated (kv_quant.h).
  bool IsRotated(KvPlane plane) const {
    return HasLevels(dtype) || (dtype == KvDtype::kI4r && plane == KvPlane::kKeys);
  }

  // All sizes and offsets are in bytes.
  size_t RowBytes(KvPlane plane) const {  // codes of one head of one token
    return static_cast<size_t>(head_dim) * static_cast<size_t>(CodeBits(dtype, plane)) / 8;
  }
  size_t ScaleBytes() const {  // scale (and minimum) of one row
    if (dtype == KvDtype::kBf16) return 0;
    const bool scale_only = dtype == KvDtype::kF8 || HasLevels(dtype);
    return scale_only ? sizeof(Bf16) : 2 * sizeof(Bf16);
  }
  size_t PlaneBytes(KvPlane plane) const {  // codes of one head: [slot][row]
    return static_cast<size_t>(block_tokens) * RowBytes(plane);
  }
  size_t HeadBytes() const {
    return PlaneBytes(KvPlane::kKeys) + (HasLatents() ? 0 : PlaneBytes(KvPlane::kValues));
  }
  size_t LayerBytes() const {
    return static_cast<size_t>(kv_heads) *
           (HeadBytes() +
            static_cast<size_t>(Planes()) * static_cast<size_t>(block_tokens) * ScaleBytes());
  }
  size_t PayloadBytes() const { return static_cast<size_t>(layers) * LayerBytes(); }
  // Distance from one block to the next in an arena: a multiple of 4,096, so that direct I/O can
  // transfer blocks.
  size_t BlockStride() const { return StrideOf(layers); }
  // The parts of a block that the window group's layers and the others take when they lie apart.
  size_t RowStride() const { return StrideOf(group.size()); }
  size_t FullStride() const { return StrideOf(layers - group.size()); }

  // Offset of a row's codes, and of its scale, from the first byte of its layer. The value of a
  // latent begins where its key does.
  size_t CodesAt(int32_t kv_head, KvPlane plane, int64_t slot) const {
    const bool second = plane == KvPlane::kValues && !HasLatents();
    const size_t start =
        static_cast<size_t>(kv_head) * HeadBytes() + (second ? PlaneBytes(KvPlane::kKeys) : 0);
    return start + static_cast<size_t>(slot) * RowBytes(plane);
  }
  size_t ScalesAt(int32_t kv_head, KvPlane plane, int64_t slot) const {
    const size_t row = (static_cast<size_t>(kv_head) * 2 + static_cast<size_t>(plane)) *
                           static_cast<size_t>(block_tokens) +
                       static_cast<size_t>(slot);
    return static_cast<size_t>(kv_heads) * HeadBytes() + row * ScaleBytes();
  }

  int64_t BlocksFor(int64_t tokens) const { return (tokens + block_tokens - 1) / block_tokens; }

  // The first block that a query at `position` or behind it may see: a sequence that goes on there
  // needs no earlier ones. Less than the number of blocks for `position` tokens.
  int64_t FirstBlock(int64_t position) const { return FirstSeen(window, position); }
  // The same of the window group's layers: a sequence that goes on at `position` needs earlier
  // blocks' KV of the other layers only.
  int64_t FirstGroupBlock(int64_t position) const { return FirstSeen(group.window, position); }
  // The most blocks that a sequence needs at once on its way to `tokens` tokens, in steps of at
  // most `step` tokens.
  int64_t BlocksAtOnce(int64_t tokens, int64_t step) const {
    return SeenAtOnce(window, tokens, step);
  }
  // The most blocks whose KV of the window group's layers such a sequence needs at once; 0 in a
  // model without such a group.
  int64_t RowsAtOnce(int64_t tokens, int64_t step) const {
    return group.empty() ? 0 : SeenAtOnce(group.window, tokens, step);
  }

  // A hash of every field. A transfer is refused unless both sides have equal fingerprints.
  uint64_t Fingerprint() const {
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a (Fowler, Noll, Vo), 64 bits, over the fields.
    const auto add = [&hash](int64_t field) {
      for (int shift = 0; shift < 64; shift += 8) {
        hash = (hash ^ static_cast<uint64_t>((field >> shift) & 0xff)) * 0x100000001b3u;
      }
    };
    for (const int64_t field : {int64_t{layers}, int64_t{kv_heads}, int64_t{head_dim},
                                int64_t{block_tokens}, static_cast<int64_t>(dtype)}) {
      add(field);
    }
    if (window != 0) add(window);             // both sides must agree on the blocks that are sent
    if (HasLatents()) add(-latent_rope_dim);  // negative, and so no window
    for (int32_t layer = 0; layer < layers && !group.empty(); ++layer) {
      if (group.Has(layer)) add((int64_t{layer} << 32) + group.window);
    }
    return hash;
  }

  bool operator==(const KvLayout&) const = default;

 private:
  // A window of one token would leave a sequence that has just begun without any block.
  static int64_t Seen(int32_t tokens) { return std::max(tokens, 2); }
  int64_t FirstSeen(int32_t tokens, int64_t position) const {
    return tokens == 0 ? 0 : std::max<int64_t>(0, position - Seen(tokens) + 1) / block_tokens;
  }
  int64_t SeenAtOnce(int32_t seen, int64_t tokens, int64_t step) const {
    const int64_t all = BlocksFor(tokens);
    return seen == 0 ? all : std::min(all, BlocksFor(Seen(seen) - 1 + block_tokens - 1 + step));
  }
  size_t StrideOf(int32_t count) const {
    return (static_cast<size_t>(count) * LayerBytes() + 4095) / 4096 * 4096;
  }
};

class KvPager;
class PageCopier;

// A view of an arena of blocks; owns nothing. kvstore's BlockPool makes it, and the forward pass
// and the handoff read and write blocks through it. It does not know which sequence owns a block.
struct PagedKv {
  std::byte* arena = nullptr;  // 4,096-byte aligned
  int64_t blocks = 0;
  KvLayout layout;
  PageCopier* copier = nullptr;  // set for an arena in GPU memory (page_copier.h), else null
  // For each block, a number that it gets when it is taken from its pool, and that no block of any
  // pool has had before: what is derived from a block's bytes is right as long as the number is the
  // same. Null: the arena has no pool.
  const std::atomic<uint64_t>* serials = nullptr;
  // The memory of the layout's window group; null: each block has memory for all layers.
  const WindowRowsView* rows = nullptr;
  KvPager* pager = nullptr;  // set for an arena in a file (kv_pager.h), else null

  // All layers of a block, which are in one piece only while `rows` is null.
  std::byte* Block(uint32_t block) const { return arena + block * layout.BlockStride(); }
  // False for a layer of the window group in a block without a row: Layer must not be used.
  bool Has(uint32_t block, int32_t layer) const {
    return rows == nullptr || !layout.group.Has(layer) || rows->row[block] != rows->no_row;
  }
  std::byte* Layer(uint32_t block, int32_t layer) const {
    const auto index = static_cast<size_t>(layer);
    if (rows == nullptr) return Block(block) + index * layout.LayerBytes();
    const size_t at = rows->place[index] * layout.LayerBytes();
    return layout.group.Has(layer) ? rows->arena + rows->row[block] * rows->row_stride + at
                                   : arena + block * rows->block_stride + at;
  }
  // Pages in bf16 only: the keys, or values, of one head, [slot][head_dim].
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
