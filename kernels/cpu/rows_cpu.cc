#include <algorithm>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/rows.h"

namespace penstock::cpu {
namespace {

constexpr int64_t kRowsPerTask = 16;

// Calls row(t) for every token.
void EachToken(const Exec& exec, int64_t tokens, const auto& row) {
  ParallelFor(exec, (tokens + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    const int64_t end = std::min(tokens, (task + 1) * kRowsPerTask);
    for (int64_t t = task * kRowsPerTask; t < end; ++t) row(t);
  });
}

}  // namespace

void AddRows(const Exec& exec, const AddRowsArgs& args) {
  const SimdOps& simd = ActiveSimd();
  EachToken(exec, args.input.dim(0), [&](int64_t t) {
    simd.add_scaled(args.input.row(t), args.factor, args.input.dim(1), args.output.row(t));
  });
}

void AddRowsTo(const Exec& exec, const AddRowsToArgs& args) {
  const SimdOps& simd = ActiveSimd();
  EachToken(exec, args.input.dim(0), [&](int64_t t) {
    simd.add_scaled(args.input.row(t), args.factors[static_cast<size_t>(t)], args.input.dim(1),
                    args.output.row(args.rows[static_cast<size_t>(t)]));
  });
}

void GatherRows(const Exec& exec, const GatherRowsArgs& args) {
  EachToken(exec, args.output.dim(0), [&](int64_t t) {
    std::copy_n(args.input.row(args.rows[static_cast<size_t>(t)]), args.output.dim(1),
                args.output.row(t));
  });
}

void CapRows(const Exec& exec, const CapRowsArgs& args) {
  const SimdOps& simd = ActiveSimd();
  const int64_t width = args.rows.dim(1);
  EachToken(exec, args.rows.dim(0), [&](int64_t t) {
    float* row = args.rows.row(t);
    for (int64_t i = 0; i < width; ++i) row[i] *= args.factor;
    if (args.cap > 0) simd.soft_cap(row, width, args.cap);
  });
}

}  // namespace penstock::cpu
