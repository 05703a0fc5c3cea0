#include <cuda_runtime.h>

#include "kernels/norm.h"

namespace penstock::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void RmsNormKernel(RmsNormArgs args) {
  const int64_t hidden = args.input.extents[1];
  const float* x = args.input.data + blockIdx.x * hidden;
  float* y = args.output.data + blockIdx.x * hidden;
  __shared__ float partial[kThreads / 32];
  float sum = 0;
  for (int64_t i = threadIdx.x; i < hidden; i += kThreads) sum += x[i] * x[i];
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = threadIdx.x % 32 < kThreads / 32 ? partial[threadIdx.x % 32] : 0.0f;
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  const float scale = rsqrtf(sum / static_cast<float>(hidden) + args.epsilon);
  for (int64_t i = threadIdx.x; i < hidden; i += kThreads) {
    y[i] = x[i] * scale * args.weight.data[i];
  }
}

}  // namespace

void RmsNorm(const RmsNormArgs& args, void* stream) {
  const auto tokens = static_cast<unsigned>(args.input.extents[0]);
  if (tokens == 0) return;
  RmsNormKernel<<<tokens, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(args);
}

}  // namespace penstock::cuda
