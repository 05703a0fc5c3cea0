#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda/gemm.h"
#include "kernels/library/prefill.h"

// Kernels that make data and compare results on the GPU, where there is too much of them for the
// host.

namespace penstock::cuda {

// Fills `values` with normal values times 2^e, e uniform in [-spread, spread]. The same seed gives
// the same values.
void FillNormal(Bf16* values, int64_t count, uint32_t seed, int spread);

// Adds the number of different 32-bit words to *differences, which is in device memory.
void CountDifferences(const void* a, const void* b, int64_t words, uint64_t* differences);
// The same, against words that are all ones.
void CountTouched(const void* a, int64_t words, uint64_t* differences);

// Adds (got - want)^2 and want^2 of a product to sums[0] and sums[1], in device memory; `want` is
// computed in double precision.
void AddProductErrors(const Weight& weight, const Bf16* input, int rows, const Product& got,
                      double* sums);
// The same for two arrays of bf16.
void AddErrors(const Bf16* got, const Bf16* want, int64_t count, double* sums);

// Fills keys and values of the first lengths[i] tokens of each sequence with normal values;
// `lengths` is in device memory. Nothing else of the pages is written.
void FillTokens(const KvPlanes& kv, const uint32_t* tables, int64_t table_stride,
                const int32_t* lengths, int sequences, uint32_t seed);

// As AddProductErrors, for prefill attention. `sequences` is in device memory; their rows are all
// rows of the call. At most 4,096 tokens.
void AddAttentionErrors(const library::PrefillCall& call, const library::PrefillRows* sequences,
                        int count, double* sums);

}  // namespace penstock::cuda
