#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_rows.h"
#include "kernels/rope.h"

namespace penstock::cpu {
namespace {

constexpr int64_t kTokensPerTask = 8;

// Calls `each` for every token, on all threads.
template <typename Each>
void ForTokens(const Exec& exec, int64_t tokens, const Each& each) {
  ParallelFor(exec, (tokens + kTokensPerTask - 1) / kTokensPerTask, [&](int64_t task, int) {
    const int64_t end = std::min(tokens, (task + 1) * kTokensPerTask);
    for (int64_t t = task * kTokensPerTask; t < end; ++t) each(t);
  });
}

void Rotate(const RopeArgs& args, const SimdOps& simd, int64_t token) {
  float* row = args.rows.row(token);
  for (int32_t h = 0; h < args.heads; ++h) {
    simd.rope(row + h * args.head_dim, args.cosines.row(token), args.sines.row(token),
              args.cosines.dim(1));
  }
}

void Store(const PagedKv& kv, const KvRowsAt& at, const float* values) {
  StoreKvRow(kv, at, values);
  if (kv.layout.span > 0) StoreRecentKvRow(kv, at, values);
}

void StoreKey(const RopeAppendArgs& args, const KvRowsAt& at, const float* key, int64_t token) {
  if (args.key_means.data == nullptr) return Store(args.kv, at, key);
  const int32_t dims = args.kv.layout.head_dim;
  float row[kQuantisedHeadMax];  // the mean at the token's position, and then the rest of the key
  std::copy_n(args.key_means.row(at.kv_head), dims, row);
  ActiveSimd().rope(row, args.cosines.row(token), args.sines.row(token), args.cosines.dim(1));
  for (int32_t d = 0; d < dims; ++d) row[d] = key[d] - row[d];
  StoreKvRow(args.kv, at, row);
  StoreRecentKvRow(args.kv, at, key);
}

void Token(const RopeAppendArgs& args, const SimdOps& simd, int64_t token) {
  const KvLayout& layout = args.kv.layout;
  const int64_t head_dim = layout.head_dim;
  float* row = args.qkv.row(token);
  Rotate({.rows = args.qkv,
          .cosines = args.cosines,
          .sines = args.sines,
          .heads = args.heads + layout.kv_heads,
          .head_dim = layout.head_dim},
         simd, token);
  const KvSlot to = args.slots[token];
  for (int32_t h = 0; h < layout.kv_heads; ++h) {
    const float* key = row + (args.heads + h) * head_dim;
    const float* value = key + layout.kv_heads * head_dim;
    KvRowsAt at{.block = to.block, .layer = args.layer, .kv_head = h, .slot = to.slot};
    StoreKey(args, at, key, token);
    at.plane = KvPlane::kValues;
    Store(args.kv, at, value);
  }
}

}  // namespace

void Rope(const Exec& exec, const RopeArgs& args) {
  const SimdOps& simd = ActiveSimd();
  ForTokens(exec, args.rows.dim(0), [&](int64_t token) { Rotate(args, simd, token); });
}

void RopeAppend(const Exec& exec, const RopeAppendArgs& args) {
  PENSTOCK_CHECK(args.key_means.data == nullptr || args.kv.layout.centred);
  const SimdOps& simd = ActiveSimd();
  ForTokens(exec, args.qkv.dim(0), [&](int64_t token) { Token(args, simd, token); });
}

}  // namespace penstock::cpu
