#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "tests/cuda/gpu/library_kernels.h"

namespace penstock::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksMax = 132 * 16;

int BlocksFor(int64_t count) {
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<int>(blocks < kBlocksMax ? blocks : kBlocksMax);
}

__device__ int64_t Index() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ int64_t Step() { return int64_t{gridDim.x} * blockDim.x; }

// The finaliser of MurmurHash3.
__device__ uint32_t Mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

__global__ void FillNormalKernel(__nv_bfloat16* values, int64_t count, uint32_t seed, int spread) {
  for (int64_t i = Index(); i < count; i += Step()) {
    const uint32_t a = Mix(static_cast<uint32_t>(i) + seed * 0x9e3779b9u);
    const uint32_t b = Mix(a + static_cast<uint32_t>(i >> 32) + 0x7f4a7c15u), c = Mix(b + seed);
    const float u = (static_cast<float>(a >> 8) + 1.0f) * 0x1p-24f;
    const float normal = sqrtf(-2.0f * logf(u)) * cospif(2.0f * static_cast<float>(b) * 0x1p-32f);
    const int exponent = static_cast<int>(c % (2 * spread + 1)) - spread;
    values[i] = __float2bfloat16(ldexpf(normal, exponent));
  }
}

__global__ void CountKernel(const uint32_t* a, const uint32_t* b, int64_t words,
                            unsigned long long* differences) {
  unsigned long long found = 0;
  for (int64_t i = Index(); i < words; i += Step()) {
    if (a[i] != (b == nullptr ? 0xffffffffu : b[i])) ++found;
  }
  if (found > 0) atomicAdd(differences, found);
}

__device__ void AddToSums(double error, double reference, double* sums) {
  for (int mask = 16; mask > 0; mask /= 2) {
    error += __shfl_xor_sync(0xffffffffu, error, mask);
    reference += __shfl_xor_sync(0xffffffffu, reference, mask);
  }
  if (threadIdx.x % 32 == 0) {
    atomicAdd(&sums[0], error);
    atomicAdd(&sums[1], reference);
  }
}

// One warp per element.
__global__ void ProductErrorsKernel(const __nv_bfloat16* weight, const __nv_bfloat16* input,
                                    int outputs, int inputs, int64_t elements, Product got,
                                    double* sums) {
  const int lane = threadIdx.x % 32;
  double error = 0, reference = 0;
  for (int64_t e = Index() / 32; e < elements; e += Step() / 32) {
    const int64_t row = e / outputs, output = e % outputs;
    double want = 0;
    for (int k = lane; k < inputs; k += 32) {
      want += static_cast<double>(__bfloat162float(weight[output * inputs + k])) *
              static_cast<double>(__bfloat162float(input[row * inputs + k]));
    }
    for (int mask = 16; mask > 0; mask /= 2) want += __shfl_xor_sync(0xffffffffu, want, mask);
    if (lane != 0) continue;
    float sum = 0;
    for (int slice = 0; slice < got.slices; ++slice) sum += got.data[slice * got.slice_stride + e];
    error += (sum - want) * (sum - want);
    reference += want * want;
  }
  __syncwarp();
  AddToSums(error, reference, sums);
}

__global__ void ErrorsKernel(const __nv_bfloat16* got, const __nv_bfloat16* want, int64_t count,
                             double* sums) {
  double error = 0, reference = 0;
  for (int64_t i = Index(); i < count; i += Step()) {
    const double w = __bfloat162float(want[i]), g = __bfloat162float(got[i]);
    error += (g - w) * (g - w);
    reference += w * w;
  }
  __syncwarp();
  AddToSums(error, reference, sums);
}

const __nv_bfloat16* Native(const Bf16* p) { return reinterpret_cast<const __nv_bfloat16*>(p); }

}  // namespace

void FillNormal(Bf16* values, int64_t count, uint32_t seed, int spread) {
  FillNormalKernel<<<BlocksFor(count), kThreads>>>(reinterpret_cast<__nv_bfloat16*>(values), count,
                                                   seed, spread);
}

void CountDifferences(const void* a, const void* b, int64_t words, uint64_t* differences) {
  CountKernel<<<BlocksFor(words), kThreads>>>(static_cast<const uint32_t*>(a),
                                              static_cast<const uint32_t*>(b), words,
                                              reinterpret_cast<unsigned long long*>(differences));
}

void CountTouched(const void* a, int64_t words, uint64_t* differences) {
  CountDifferences(a, nullptr, words, differences);
}

void AddProductErrors(const Weight& weight, const Bf16* input, int rows, const Product& got,
                      double* sums) {
  const int64_t elements = int64_t{rows} * weight.outputs;
  ProductErrorsKernel<<<BlocksFor(elements * 32), kThreads>>>(
      Native(weight.data), Native(input), weight.outputs, weight.inputs, elements, got, sums);
}

void AddErrors(const Bf16* got, const Bf16* want, int64_t count, double* sums) {
  ErrorsKernel<<<BlocksFor(count), kThreads>>>(Native(got), Native(want), count, sums);
}

}  // namespace penstock::cuda
