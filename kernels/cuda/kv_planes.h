#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/paged_kv.h"

namespace penstock::cuda {

// How the elements of a plane (K or V) are stored: bf16, or codes with a scale per (token, head) as
// kv_quant.h has them. f8 is e4m3 times a power of two; i8 and i4 have {scale, minimum}; byte j of
// a row of i4 holds elements j and j + head_dim / 2.
enum class KvCode : int32_t { kBf16, kF8, kI8, kI4 };

constexpr int CodeBits(KvCode code) {
  return code == KvCode::kBf16 ? 16 : code == KvCode::kI4 ? 4 : 8;
}
// Of one token of one head, in bytes: bf16 values.
constexpr int ScaleBytes(KvCode code) {
  return code == KvCode::kBf16 ? 0 : code == KvCode::kF8 ? 2 : 4;
}
constexpr bool IsAffine(KvCode code) { return code == KvCode::kI8 || code == KvCode::kI4; }

// One plane of one layer: where the rows of a token's heads are. In bytes, from the layer's start.
struct KvPlane {
  KvCode code = KvCode::kBf16;
  int32_t offset = 0;             // of the first head's rows [slot][head_dim]
  int32_t head_stride = 0;        // to the next head's rows
  int32_t row_bytes = 0;          // head_dim elements
  int32_t scale_offset = 0;       // of the first head's scales [slot]
  int32_t scale_head_stride = 0;  // to the next head's scales
};

// One layer of a block-major pool in device memory: the kernels take strides, not layouts. Every
// offset and stride is a multiple of 16, pages have 16 tokens or a power-of-two multiple of that.
struct KvPlanes {
  std::byte* layer = nullptr;  // of block 0
  int64_t block_stride = 0;
  KvPlane keys;
  KvPlane values;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t page_log2 = 4;      // log2 of the tokens in a page
  bool rotated_keys = false;  // keys, and so queries, are multiplied by a Hadamard matrix
};

inline KvCode CodeOf(const KvLayout& layout, penstock::KvPlane plane) {
  if (layout.dtype == KvDtype::kBf16) return KvCode::kBf16;
  if (layout.dtype == KvDtype::kF8) return KvCode::kF8;
  return layout.HasFourBits(plane) ? KvCode::kI4 : KvCode::kI8;
}

inline KvPlane PlaneOf(const KvLayout& layout, penstock::KvPlane plane) {
  return {.code = CodeOf(layout, plane),
          .offset = static_cast<int32_t>(layout.CodesAt(0, plane, 0)),
          .head_stride = static_cast<int32_t>(layout.HeadBytes()),
          .row_bytes = static_cast<int32_t>(layout.RowBytes(plane)),
          .scale_offset = static_cast<int32_t>(layout.ScalesAt(0, plane, 0)),
          .scale_head_stride =
              static_cast<int32_t>(layout.ScalesAt(1, plane, 0) - layout.ScalesAt(0, plane, 0))};
}

// A layer of a pool in device memory. SupportsKv (attention.h) says whether kernels take it;
// block_tokens is a power of two.
inline KvPlanes PlanesOf(const PagedKv& kv, int32_t layer) {
  const KvLayout& layout = kv.layout;
  KvPlanes planes{.layer = kv.Layer(0, layer),
                  .block_stride = static_cast<int64_t>(layout.BlockStride()),
                  .keys = PlaneOf(layout, penstock::KvPlane::kKeys),
                  .values = PlaneOf(layout, penstock::KvPlane::kValues),
                  .kv_heads = layout.kv_heads,
                  .head_dim = layout.head_dim,
                  .page_log2 = 0,
                  .rotated_keys = KeysAreRotated(layout)};
  while ((1 << planes.page_log2) < layout.block_tokens) ++planes.page_log2;
  return planes;
}

}  // namespace penstock::cuda
