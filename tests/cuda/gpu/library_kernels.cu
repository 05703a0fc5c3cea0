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

struct PageView {
  __nv_bfloat16 *keys, *values;
  int64_t page, head, token;
  int32_t page_tokens;
  const uint32_t* tables;
  int64_t table_stride;

  __device__ int64_t At(int sequence, int kv_head, int position) const {
    const uint32_t id = tables[sequence * table_stride + position / page_tokens];
    return id * page + kv_head * head + (position % page_tokens) * token;
  }
};

// One block per (token, head, sequence).
__global__ void FillTokensKernel(PageView view, const int32_t* lengths, int dim, uint32_t seed) {
  const int token = blockIdx.x, head = blockIdx.y, sequence = blockIdx.z;
  if (token >= lengths[sequence]) return;
  const int64_t at = view.At(sequence, head, token);
  for (int i = threadIdx.x; i < 2 * dim; i += blockDim.x) {
    const uint32_t a = Mix(seed + token * 977u + head * 131071u + sequence * 8191u + i * 524287u);
    const uint32_t b = Mix(a + 1);
    const float u = (static_cast<float>(a >> 8) + 1.0f) * 0x1p-24f;
    const float normal = sqrtf(-2.0f * logf(u)) * cospif(2.0f * static_cast<float>(b) * 0x1p-32f);
    (i < dim ? view.keys : view.values)[at + i % dim] = __float2bfloat16(normal);
  }
}

constexpr int kOracleTokensMax = 4096;

struct OracleParams {
  PageView view;
  const __nv_bfloat16 *queries, *got;
  int64_t query_stride, output_stride;
  const library::PrefillRows* sequences;
  int32_t count, dim, group, window;
  double scale;
  double* sums;
};

// One block of kThreads per (row, head).
__global__ void AttentionErrorsKernel(OracleParams p) {
  __shared__ double weights[kOracleTokensMax];
  __shared__ double total;
  const int row = blockIdx.x, head = blockIdx.y, kv_head = head / p.group;
  int sequence = 0;
  while (row >= p.sequences[sequence].first_row + p.sequences[sequence].rows ||
         row < p.sequences[sequence].first_row) {
    if (++sequence == p.count) return;
  }
  const int position = p.sequences[sequence].position + row - p.sequences[sequence].first_row;
  const int first = p.window > 0 && position + 1 > p.window ? position + 1 - p.window : 0;
  const __nv_bfloat16* query = p.queries + row * p.query_stride + int64_t{head} * p.dim;
  for (int t = first + threadIdx.x; t <= position; t += blockDim.x) {
    const __nv_bfloat16* key = p.view.keys + p.view.At(sequence, kv_head, t);
    double sum = 0;
    for (int d = 0; d < p.dim; ++d) {
      sum += static_cast<double>(__bfloat162float(query[d])) *
             static_cast<double>(__bfloat162float(key[d]));
    }
    weights[t] = sum * p.scale;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double top = weights[first];
    for (int t = first; t <= position; ++t) top = fmax(top, weights[t]);
    total = 0;
    for (int t = first; t <= position; ++t) total += weights[t] = exp(weights[t] - top);
  }
  __syncthreads();
  double error = 0, reference = 0;
  for (int d = threadIdx.x; d < p.dim; d += blockDim.x) {
    double want = 0;
    for (int t = first; t <= position; ++t) {
      want += weights[t] * __bfloat162float(p.view.values[p.view.At(sequence, kv_head, t) + d]);
    }
    want /= total;
    const double got = __bfloat162float(p.got[row * p.output_stride + int64_t{head} * p.dim + d]);
    error += (got - want) * (got - want);
    reference += want * want;
  }
  __syncwarp();
  AddToSums(error, reference, p.sums);
}

PageView ViewOf(const KvPlanes& kv, const uint32_t* tables, int64_t table_stride) {
  const library::PrefillStrides strides = library::StridesOf(kv);
  const auto native = [](const Bf16* p) {
    return reinterpret_cast<__nv_bfloat16*>(const_cast<Bf16*>(p));
  };
  return {.keys = native(strides.keys),
          .values = native(strides.values),
          .page = strides.page,
          .head = strides.head,
          .token = strides.token,
          .page_tokens = 1 << kv.page_log2,
          .tables = tables,
          .table_stride = table_stride};
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

void FillTokens(const KvPlanes& kv, const uint32_t* tables, int64_t table_stride,
                const int32_t* lengths, int sequences, uint32_t seed) {
  const PageView view = ViewOf(kv, tables, table_stride);
  const auto tokens = static_cast<unsigned>(table_stride * view.page_tokens);
  const dim3 grid(tokens, static_cast<unsigned>(kv.kv_heads), static_cast<unsigned>(sequences));
  FillTokensKernel<<<grid, 128>>>(view, lengths, kv.head_dim, seed);
}

void AddAttentionErrors(const library::PrefillCall& call, const library::PrefillRows* sequences,
                        int count, double* sums) {
  const OracleParams params{.view = ViewOf(call.kv, call.tables, call.shape.table_stride),
                            .queries = Native(call.queries),
                            .got = Native(call.output),
                            .query_stride = call.query_stride,
                            .output_stride = call.output_stride,
                            .sequences = sequences,
                            .count = count,
                            .dim = call.shape.head_dim,
                            .group = call.shape.heads / call.kv.kv_heads,
                            .window = call.shape.window,
                            .scale = call.scale,
                            .sums = sums};
  const dim3 grid(static_cast<unsigned>(call.rows), static_cast<unsigned>(call.shape.heads));
  AttentionErrorsKernel<<<grid, 128>>>(params);
}

}  // namespace penstock::cuda
