#include "kernels/cuda/device/blend/blend.cuh"

namespace penstock::cuda {

void MoveTokens(const MoveTokensParams& params, int tokens, void* stream) {
  Launch(&MoveTokensKernel, {.x = tokens, .y = params.layers, .threads = kBlendThreads}, params,
         stream);
}

void ReadValues(const ValuesParams& params, int rows, void* stream) {
  Launch(&ReadValuesKernel, {.x = rows, .threads = kBlendThreads}, params, stream);
}

void CompareValues(const ValuesParams& params, int rows, void* stream) {
  Launch(&CompareValuesKernel,
         {.x = rows, .threads = kBlendThreads, .shared_bytes = kBlendWarps * sizeof(Squares)},
         params, stream);
}

}  // namespace penstock::cuda
