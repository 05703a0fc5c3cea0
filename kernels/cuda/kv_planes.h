#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/paged_kv.h"

namespace penstock::cuda {

// The storage of the elements of a plane (K or V): bf16, or codes with a scale per (token, head),
// as in kv_quant.h. f8 is e4m3 times a power of two. i8 and i4 have {scale, minimum}. Byte j of an
// i4 row holds elements j and j + head_dim / 2. l3 and l2 are levels in 3 and 2 bits, of rows that
// are always rotated.
enum class KvCode : int32_t { kBf16, kF8, kI8, kI4, kL3, kL2 };

constexpr bool IsLevels(KvCode code) { return code == KvCode::kL3 || code == KvCode::kL2; }
constexpr int CodeBits(KvCode code) {
  switch (code) {
    case KvCode::kBf16:
      return 16;
    case KvCode::kF8:
    case KvCode::kI8:
      return 8;
    case KvCode::kI4:
      return 4;
    case KvCode::kL3:
      return 3;
    case KvCode::kL2:
      return 2;
  }
  return 0;
}
// Bytes of the scale (and minimum), bf16 values, of one head of one token.
constexpr int ScaleBytes(KvCode code) {
  if (code == KvCode::kBf16) return 0;
  return code == KvCode::kF8 || IsLevels(code) ? 2 : 4;
}
constexpr bool IsAffine(KvCode code) { return code == KvCode::kI8 || code == KvCode::kI4; }

// The addresses of one plane of one layer, in bytes from the start of the layer.
struct KvPlane {
  KvCode code = KvCode::kBf16;
  int32_t offset = 0;             // rows [slot][head_dim] of the first head
  int32_t head_stride = 0;        // from one head's rows to the next head's
  int32_t row_bytes = 0;          // bytes of head_dim elements
  int32_t scale_offset = 0;       // scales [slot] of the first head
  int32_t scale_head_stride = 0;  // from one head's scales to the next head's
};

// One layer of a block-major pool in device memory, described by strides so that kernels do not
// depend on KvLayout. Every offset and stride is a multiple of 16. Pages have 16 tokens times a
// power of two.
struct KvPlanes {
  std::byte* layer = nullptr;  // the layer in block 0
  int64_t block_stride = 0;
  KvPlane keys;
  KvPlane values;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t page_log2 = 4;      // log2 of the tokens in a page
  bool rotated_keys = false;  // keys are stored rotated (Hadamard), so queries are rotated too
};

inline KvCode CodeOf(const KvLayout& layout, penstock::KvPlane plane) {
  if (layout.dtype == KvDtype::kBf16) return KvCode::kBf16;
  if (layout.dtype == KvDtype::kF8) return KvCode::kF8;
  switch (CodeBits(layout.dtype, plane)) {
    case 2:
      return KvCode::kL2;
    case 3:
      return KvCode::kL3;
    case 4:
      return KvCode::kI4;
    default:
      return KvCode::kI8;
  }
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

// The same of a layer of second copies (KvLayout::span), which are in bf16.
inline KvPlane RecentPlaneOf(const KvLayout& layout, penstock::KvPlane plane) {
  return {.code = KvCode::kBf16,
          .offset = static_cast<int32_t>(layout.RecentAt(0, plane, 0)),
          .head_stride =
              static_cast<int32_t>(layout.RecentAt(1, plane, 0) - layout.RecentAt(0, plane, 0)),
          .row_bytes =
              static_cast<int32_t>(layout.RecentAt(0, plane, 1) - layout.RecentAt(0, plane, 0))};
}

// The address of a layer in the first block, and the distance to the same layer in the next block.
// If the layer is in rows (PagedKv::rows), the same of the first row and the next row.
struct PagePlace {
  std::byte* first = nullptr;
  int64_t stride = 0;
};
inline PagePlace PlaceOf(const PagedKv& kv, int32_t layer) {
  if (kv.rows == nullptr) {
    return {.first = kv.arena + kv.layout.BytesBefore(layer),
            .stride = static_cast<int64_t>(kv.layout.BlockStride())};
  }
  const size_t place = kv.rows->place[static_cast<size_t>(layer)];
  if (!kv.layout.group.Has(layer)) {
    return {.first = kv.arena + place, .stride = static_cast<int64_t>(kv.rows->block_stride)};
  }
  return {.first = kv.rows->arena + place, .stride = static_cast<int64_t>(kv.rows->row_stride)};
}

// Describes a layer of a pool in device memory: of its rows, which have numbers of their own, if
// the layer is in one. block_tokens must be a power of two. SupportsKv (attention.h) tells whether
// the kernels support it.
inline KvPlanes PlanesOf(const PagedKv& kv, int32_t layer) {
  const KvLayout& layout = kv.layout;
  const PagePlace place = PlaceOf(kv, layer);
  const auto plane_of = layout.span > 0 && layer % 2 == 1 ? &RecentPlaneOf : &PlaneOf;
  KvPlanes planes{.layer = place.first,
                  .block_stride = place.stride,
                  .keys = plane_of(layout, penstock::KvPlane::kKeys),
                  .values = plane_of(layout, penstock::KvPlane::kValues),
                  .kv_heads = layout.kv_heads,
                  .head_dim = layout.head_dim,
                  .page_log2 = 0,
                  .rotated_keys = layout.IsRotated(penstock::KvPlane::kKeys)};
  while ((1 << planes.page_log2) < layout.block_tokens) ++planes.page_log2;
  return planes;
}

}  // namespace penstock::cuda
