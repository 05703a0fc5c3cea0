#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/kv_quant.h"
#include "kernels/cpu/simd.h"
#include "kernels/kv_rows.h"

namespace penstock::cpu {
namespace {

static_assert(kQuantisedHeadMax <= kQuantisedGroupMax);

constexpr Bf16 kNan{0x7fc0};

std::byte* Codes(const PagedKv& kv, const KvRowsAt& at) {
  return kv.Layer(at.block, at.layer) + kv.layout.CodesAt(at.kv_head, at.plane, at.slot);
}

// The size of a row's scale: a Bf16 for kF8 and for levels, else KvGroupParams.
std::byte* Scales(const PagedKv& kv, const KvRowsAt& at) {
  return kv.Layer(at.block, at.layer) + kv.layout.ScalesAt(at.kv_head, at.plane, at.slot);
}

bool Quantisable(const Bf16* row, int32_t dims) {
  uint16_t top = 0;
  for (int32_t d = 0; d < dims; ++d) {
    top = std::max(top, static_cast<uint16_t>(row[d].bits & 0x7fff));
  }
  return top >> 7 < kQuantisedExponentMax;
}

}  // namespace

void StoreKvRow(const PagedKv& kv, const KvRowsAt& at, const float* values) {
  const KvLayout& layout = kv.layout;
  const int32_t dims = layout.head_dim;
  std::byte* codes = Codes(kv, at);
  if (layout.dtype == KvDtype::kBf16) {
    ActiveSimd().to_bf16(values, dims, reinterpret_cast<Bf16*>(codes));
    return;
  }
  alignas(64) Bf16 row[kQuantisedHeadMax];
  ActiveSimd().to_bf16(values, dims, row);
  auto* scales = reinterpret_cast<Bf16*>(Scales(kv, at));
  if (!Quantisable(row, dims)) {
    std::fill_n(codes, layout.RowBytes(at.plane), std::byte{0});
    std::fill_n(scales, layout.ScaleBytes() / sizeof(Bf16), kNan);
    return;
  }
  const KvQuantOps& quant = ActiveKvQuantOps();
  auto* target = reinterpret_cast<uint8_t*>(codes);
  if (layout.dtype == KvDtype::kF8) {
    quant.encode_f8(row, 1, dims, F8Format::kE4m3, target, scales);
    return;
  }
  const int bits = CodeBits(layout.dtype, at.plane);
  if (HasLevels(layout.dtype)) {
    quant.encode_levels(row, 1, dims, bits, target, scales);
    return;
  }
  KvGroupParams params;
  if (bits == 4) {
    quant.encode_i4(row, 1, dims, layout.IsRotated(at.plane), target, &params);
  } else {
    quant.encode_i8(row, 1, dims, target, &params);
  }
  scales[0] = params.scale;
  scales[1] = params.minimum;
}

void StoreRecentKvRow(const PagedKv& kv, const KvRowsAt& at, const float* values) {
  const KvLayout& layout = kv.layout;
  std::byte* layer = kv.Layer(at.block, at.layer + 1);
  auto* row = reinterpret_cast<Bf16*>(layer + layout.RecentAt(at.kv_head, at.plane, at.slot));
  if (!layout.IsRotated(at.plane)) return ActiveSimd().to_bf16(values, layout.head_dim, row);
  alignas(64) float rotated[kQuantisedHeadMax];
  std::copy_n(values, layout.head_dim, rotated);
  RotateRows(rotated, 1, layout.head_dim);
  ActiveSimd().to_bf16(rotated, layout.head_dim, row);
}

void LoadKvRows(const PagedKv& kv, const KvRowsAt& at, int64_t count, Bf16* rows) {
  const KvLayout& layout = kv.layout;
  const int32_t dims = layout.head_dim;
  const std::byte* codes = Codes(kv, at);
  if (layout.dtype == KvDtype::kBf16) {
    std::copy_n(reinterpret_cast<const Bf16*>(codes), count * dims, rows);
    return;
  }
  const KvQuantOps& quant = ActiveKvQuantOps();
  const auto* source = reinterpret_cast<const uint8_t*>(codes);
  const std::byte* scales = Scales(kv, at);
  if (layout.dtype == KvDtype::kF8) {
    quant.decode_f8(source, reinterpret_cast<const Bf16*>(scales), count, dims, F8Format::kE4m3,
                    rows);
    return;
  }
  const int bits = CodeBits(layout.dtype, at.plane);
  if (HasLevels(layout.dtype)) {
    quant.decode_levels(source, reinterpret_cast<const Bf16*>(scales), count, dims, bits, rows);
    return;
  }
  const auto* params = reinterpret_cast<const KvGroupParams*>(scales);
  if (bits == 4) {
    quant.decode_i4(source, params, count, dims, /*rotate=*/false, rows);
  } else {
    quant.decode_i8(source, params, count, dims, rows);
  }
}

void RotateRows(float* rows, int64_t count, int32_t head_dim) {
  ActiveKvQuantOps().rotate(rows, count, head_dim);
}

}  // namespace penstock::cpu
