#include <algorithm>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_rows.h"
#include "kernels/rope.h"

namespace penstock::cpu {
namespace {

constexpr int64_t kTokensPerTask = 8;

void Token(const RopeAppendArgs& args, const SimdOps& simd, int64_t token) {
  const KvLayout& layout = args.kv.layout;
  const int64_t head_dim = layout.head_dim;
  float* row = args.qkv.row(token);
  for (int32_t h = 0; h < args.heads + layout.kv_heads; ++h) {
    simd.rope(row + h * head_dim, args.cosines.row(token), args.sines.row(token),
              args.cosines.dim(1));
  }
  const KvSlot to = args.slots[token];
  for (int32_t h = 0; h < layout.kv_heads; ++h) {
    const float* key = row + (args.heads + h) * head_dim;
    const float* value = key + layout.kv_heads * head_dim;
    KvRowsAt at{.block = to.block, .layer = args.layer, .kv_head = h, .slot = to.slot};
    StoreKvRow(args.kv, at, key);
    at.plane = KvPlane::kValues;
    StoreKvRow(args.kv, at, value);
  }
}

}  // namespace

void RopeAppend(const Exec& exec, const RopeAppendArgs& args) {
  const int64_t tokens = args.qkv.dim(0);
  const SimdOps& simd = ActiveSimd();
  ParallelFor(exec, (tokens + kTokensPerTask - 1) / kTokensPerTask, [&](int64_t task, int) {
    const int64_t end = std::min(tokens, (task + 1) * kTokensPerTask);
    for (int64_t t = task * kTokensPerTask; t < end; ++t) Token(args, simd, t);
  });
}

}  // namespace penstock::cpu
