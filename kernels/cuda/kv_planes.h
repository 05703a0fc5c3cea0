#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

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

// A layer of a bf16 pool. CHECKs nothing: SupportsCuda (attention.h) says what kernels can take.
inline KvPlanes PlanesOf(const PagedKv& kv, int32_t layer) {
  const KvLayout& layout = kv.layout;
  const auto plane = static_cast<int32_t>(layout.PlaneBytes());
  const int32_t row = layout.head_dim * static_cast<int32_t>(sizeof(Bf16));
  KvPlanes planes{.layer = kv.Layer(0, layer),
                  .block_stride = static_cast<int64_t>(layout.BlockStride()),
                  .keys = {.offset = 0, .head_stride = 2 * plane, .row_bytes = row},
                  .values = {.offset = plane, .head_stride = 2 * plane, .row_bytes = row},
                  .kv_heads = layout.kv_heads,
                  .head_dim = layout.head_dim,
                  .page_log2 = 0};
  while ((1 << planes.page_log2) < layout.block_tokens) ++planes.page_log2;
  return planes;
}

}  // namespace penstock::cuda
