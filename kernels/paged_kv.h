#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/kv_format.h"
#include "kernels/window_group.h"

namespace penstock {

// The geometry of a block ("page"). A layer consists of codes [kv_head][K|V][slot][row] and, if the
// format has scales, scales [kv_head][K|V][slot]. All layers of a block are contiguous, and so is
// any range of its layers.
//
// Pages of latents (multi-head latent attention) have one plane, [slot][row], that all heads share:
// a row is the latent and then the rotated key, in bf16. Attention takes the whole row as key and
// its latent as value.
//
// With a span (KvPageFormat) a layer of the model is stored twice: as layer 2 * i in `dtype`, and
// as layer 2 * i + 1 in bf16, [kv_head][K|V][slot][row], rotated where `dtype` rotates. The second
// is needed only while a query of the same span may come, so these layers are the window group.
struct KvLayout {
  int32_t layers = 0;  // as they are stored
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
  int32_t span = 0;      // tokens; see KvPageFormat
  bool centred = false;  // likewise

  bool HasLatents() const { return latent_rope_dim > 0; }
  int32_t Planes() const { return HasLatents() ? 1 : 2; }
  int32_t ValueDim() const { return head_dim - latent_rope_dim; }  // of what attention adds up

  KvPageFormat format() const { return {.dtype = dtype, .span = span, .centred = centred}; }
  // This layout without the second copies.
  KvLayout FirstCopies() const {
    KvLayout result = *this;
    if (span == 0) return result;
    result.layers = layers / 2;
    result.group = {};
    result.span = 0;
    result.centred = false;
    return result;
  }
  // This layout in another format. It has no span; one with windows or latents gets none.
  KvLayout In(const KvPageFormat& format) const;
  // Stored layers for each layer of the model; the first of them has the format `dtype`.
  int32_t Copies() const { return span > 0 ? 2 : 1; }

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
  size_t LayerBytes() const {  // of a layer in `dtype`
    return static_cast<size_t>(kv_heads) *
           (HeadBytes() +
            static_cast<size_t>(Planes()) * static_cast<size_t>(block_tokens) * ScaleBytes());
  }
  // Bytes of a layer's second copy; 0 without a span.
  size_t RecentBytes() const { return span > 0 ? RecentAt(kv_heads, KvPlane::kKeys, 0) : 0; }
  size_t BytesOf(int32_t layer) const {
    return span > 0 && layer % 2 == 1 ? RecentBytes() : LayerBytes();
  }
  // Bytes of all stored layers before `layer`.
  size_t BytesBefore(int32_t layer) const {
    if (span == 0) return static_cast<size_t>(layer) * LayerBytes();
    return static_cast<size_t>(layer / 2) * (LayerBytes() + RecentBytes()) +
           static_cast<size_t>(layer % 2) * LayerBytes();
  }
  size_t BytesOf(int32_t first_layer, int32_t last_layer) const {
    return BytesBefore(last_layer) - BytesBefore(first_layer);
  }
  // The layer that has byte `offset` of a block; `layers` if it is behind the last.
  int32_t LayerAt(size_t offset) const {
    const size_t each = LayerBytes() + RecentBytes();
    const auto pair = static_cast<int32_t>(offset / each);
    if (span == 0) return std::min(pair, layers);
    return std::min(2 * pair + (offset % each >= LayerBytes() ? 1 : 0), layers);
  }
  size_t PayloadBytes() const { return BytesBefore(layers); }
  // Distance from one block to the next in an arena: a multiple of 4,096, so that direct I/O can
  // transfer blocks.
  size_t BlockStride() const { return StrideOf(PayloadBytes()); }
  // Bytes of the second copies of all layers, without what rounds a row up.
  size_t RowPayloadBytes() const { return static_cast<size_t>(layers / 2) * RecentBytes(); }
  // The parts of a block that the window group's layers and the others take when they lie apart.
  size_t RowStride() const {
    return StrideOf(span > 0 ? RowPayloadBytes()
                             : static_cast<size_t>(group.size()) * LayerBytes());
  }
  size_t FullStride() const {
    return StrideOf(static_cast<size_t>(layers - group.size()) * LayerBytes());
  }

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
  // Offset of a row in bf16 from the first byte of its layer, which is the second copy.
  size_t RecentAt(int32_t kv_head, KvPlane plane, int64_t slot) const {
    const size_t row = (static_cast<size_t>(kv_head) * 2 + static_cast<size_t>(plane)) *
                           static_cast<size_t>(block_tokens) +
                       static_cast<size_t>(slot);
    return row * static_cast<size_t>(head_dim) * sizeof(Bf16);
  }

  int64_t BlocksFor(int64_t tokens) const { return (tokens + block_tokens - 1) / block_tokens; }

  // The first block that a query at `position` or behind it may see: a sequence that goes on there
  // needs no earlier ones. Less than the number of blocks for `position` tokens.
  int64_t FirstBlock(int64_t position) const { return FirstSeen(window, position); }
  // The same of the window group's layers: a sequence that goes on at `position` needs earlier
  // blocks' KV of the other layers only.
  int64_t FirstGroupBlock(int64_t position) const {
    return span > 0 ? position / span * span / block_tokens : FirstSeen(group.window, position);
  }
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
    if (span > 0) add(-span);
    if (centred) add(1);
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
  static size_t StrideOf(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
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
    if (rows == nullptr) return Block(block) + layout.BytesBefore(layer);
    const size_t at = rows->place[static_cast<size_t>(layer)];
    return layout.group.Has(layer) ? rows->arena + rows->row[block] * rows->row_stride + at
                                   : arena + block * rows->block_stride + at;
  }
  // The same pages, of which second copies (KvLayout::span) are left out. They must lie apart.
  PagedKv FirstCopies() const;
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

// Of pages whose rows lie behind the blocks' other layers; `row` and `no_row` as in WindowRowsView.
WindowRowsView RowsBehind(const PagedKv& kv, const uint32_t* row, uint32_t no_row);

}  // namespace penstock
