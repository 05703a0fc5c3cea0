#include <algorithm>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/norm.h"

namespace penstock::cpu {
namespace {

constexpr int64_t kTokensPerTask = 16;

}  // namespace

void RmsNorm(const Exec& exec, const RmsNormArgs& args) {
  const int64_t tokens = args.input.dim(0), hidden = args.input.dim(1);
  const SimdOps& simd = ActiveSimd();
  ParallelFor(exec, (tokens + kTokensPerTask - 1) / kTokensPerTask, [&](int64_t task, int) {
    const int64_t end = std::min(tokens, (task + 1) * kTokensPerTask);
    for (int64_t t = task * kTokensPerTask; t < end; ++t) {
      simd.rms_norm(args.input.row(t), args.weight.data, hidden, args.epsilon, args.output.row(t));
    }
  });
}

void RmsNormHeads(const Exec& exec, const RmsNormHeadsArgs& args) {
  const int64_t tokens = args.rows.dim(0), head_dim = args.weight.dim(0);
  const SimdOps& simd = ActiveSimd();
  ParallelFor(exec, (tokens + kTokensPerTask - 1) / kTokensPerTask, [&](int64_t task, int) {
    const int64_t end = std::min(tokens, (task + 1) * kTokensPerTask);
    for (int64_t t = task * kTokensPerTask; t < end; ++t) {
      for (int32_t h = 0; h < args.heads; ++h) {
        float* head = args.rows.row(t) + args.first_column + h * head_dim;
        simd.rms_norm(head, args.weight.data, head_dim, args.epsilon, head);
      }
    }
  });
}

}  // namespace penstock::cpu
