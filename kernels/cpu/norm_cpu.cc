#include <algorithm>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/norm.h"

namespace penstock::cpu {
namespace {

constexpr int64_t kTokensPerTask = 16;

void ForTokens(const Exec& exec, int64_t tokens, const auto& use) {
  ParallelFor(exec, (tokens + kTokensPerTask - 1) / kTokensPerTask, [&](int64_t task, int) {
    const int64_t end = std::min(tokens, (task + 1) * kTokensPerTask);
    for (int64_t t = task * kTokensPerTask; t < end; ++t) use(t);
  });
}

}  // namespace

void RmsNorm(const Exec& exec, const RmsNormArgs& args) {
  const SimdOps& simd = ActiveSimd();
  ForTokens(exec, args.input.dim(0), [&](int64_t t) {
    simd.rms_norm(args.input.row(t), args.weight.data, args.input.dim(1), args.epsilon,
                  args.output.row(t));
  });
}

void LayerNorm(const Exec& exec, const LayerNormArgs& args) {
  const SimdOps& simd = ActiveSimd();
  ForTokens(exec, args.input.dim(0), [&](int64_t t) {
    simd.layer_norm(args.input.row(t), {args.weight.data, args.bias.data, args.epsilon},
                    args.input.dim(1), args.output.row(t));
  });
}

void RmsNormHeads(const Exec& exec, const RmsNormHeadsArgs& args) {
  const int64_t head_dim = args.weight.dim(0);
  const SimdOps& simd = ActiveSimd();
  ForTokens(exec, args.rows.dim(0), [&](int64_t t) {
    for (int32_t h = 0; h < args.heads; ++h) {
      float* head = args.rows.row(t) + args.first_column + h * head_dim;
      simd.rms_norm(head, args.weight.data, head_dim, args.epsilon, head);
    }
  });
}

}  // namespace penstock::cpu
