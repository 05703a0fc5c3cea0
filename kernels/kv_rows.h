#pragma once

#include <cstdint>

#include "kernels/paged_kv.h"

namespace penstock {

// The address of rows of one head in a page, starting at `slot`.
struct KvRowsAt {
  uint32_t block = 0;
  int32_t layer = 0;
  int32_t kv_head = 0;
  KvPlane plane = KvPlane::kKeys;
  int64_t slot = 0;
};

inline constexpr int32_t kQuantisedHeadMax = 1024;

// True if pages of format `dtype` can hold heads of `head_dim` elements.
inline bool HoldsHeads(KvDtype dtype, int32_t head_dim) {
  return dtype == KvDtype::kBf16 || (head_dim % 16 == 0 && head_dim <= kQuantisedHeadMax);
}

namespace cpu {

// Stores one row of `values` [head_dim], rounded to bf16 and then coded in the page's format. In a
// quantised page a row with an infinity, a NaN or a magnitude of 2^113 or more reads back as NaN,
// so that a broken model cannot look sound.
void StoreKvRow(const PagedKv& kv, const KvRowsAt& at, const float* values);

// Stores the same row in bf16, for the queries of its span (KvLayout::span); `at.layer` is that of
// the first copy. It is rotated where the page's format rotates.
void StoreRecentKvRow(const PagedKv& kv, const KvRowsAt& at, const float* values);

// Loads `count` rows of a page into `rows` [count][head_dim]. Rotated rows stay rotated: a product
// with rotated keys takes rotated queries, and a sum of rotated values is rotated back. The result
// for a row depends on the bytes of that row only.
void LoadKvRows(const PagedKv& kv, const KvRowsAt& at, int64_t count, Bf16* rows);

// Applies the rotation of pages (a normalised Hadamard transform, its own inverse) to rows
// [count][head_dim], in place.
void RotateRows(float* rows, int64_t count, int32_t head_dim);

}  // namespace cpu
}  // namespace penstock
