#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/embedding.h"

namespace penstock::cpu {

void Embedding(const Exec& exec, const EmbeddingArgs& args) {
  const SimdOps& simd = ActiveSimd();
  const int64_t hidden = args.output.dim(1);
  ParallelFor(exec, static_cast<int64_t>(args.tokens.size()), [&](int64_t t, int) {
    const uint32_t token = args.tokens[t];
    if (args.table.data != nullptr) {
      simd.to_float(args.table.row(token), hidden, args.output.row(t));
    } else {
      args.matrix->GetRow(token, args.output.row(t));
    }
  });
}

}  // namespace penstock::cpu
