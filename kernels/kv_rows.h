#pragma once

#include <cstdint>

#include "kernels/paged_kv.h"

namespace penstock {

// Rows of one head in a page, from `slot` on.
struct KvRowsAt {
  uint32_t block = 0;
  int32_t layer = 0;
  int32_t kv_head = 0;
  KvPlane plane = KvPlane::kKeys;
  int64_t slot = 0;
};

inline constexpr int32_t kQuantisedHeadMax = 1024;

// Whether pages of that format can hold heads of that size.
inline bool HoldsHeads(KvDtype dtype, int32_t head_dim) {
  return dtype == KvDtype::kBf16 || (head_dim % 16 == 0 && head_dim <= kQuantisedHeadMax);
}

// True where the keys of a page are stored rotated: queries must be rotated too.
inline bool KeysAreRotated(const KvLayout& layout) { return layout.dtype == KvDtype::kI4r; }

namespace cpu {

// One row of `values` [head_dim], rounded to bf16 and then coded as the page has it. A row with an
// infinity, a NaN or a magnitude of 2^113 or more reads back as NaN from a quantised page: a broken
// model must not come to look sound.
void StoreKvRow(const PagedKv& kv, const KvRowsAt& at, const float* values);

// `count` rows of a page into `rows` [count][head_dim], rotated ones as they are stored. What a row
// reads as depends on nothing but its own bytes.
void LoadKvRows(const PagedKv& kv, const KvRowsAt& at, int64_t count, Bf16* rows);

// The rotation of keys, and its own inverse, on rows [count][head_dim].
void RotateRows(float* rows, int64_t count, int32_t head_dim);

}  // namespace cpu
}  // namespace penstock
