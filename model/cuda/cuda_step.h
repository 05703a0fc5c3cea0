#pragma once

#include <utility>

#include "model/cuda/cuda_batch.h"
#include "model/cuda/cuda_inputs.h"

namespace penstock {

// A step under way: what it computes, and where on the device that is.
struct CudaStep {
  explicit CudaStep(CudaBatch of) : batch(std::move(of)) {}

  template <class T>
  const T* At(size_t offset) const {
    return reinterpret_cast<const T*>(inputs + offset);
  }

  CudaBatch batch;
  PagedKv kv;
  const std::byte* inputs = nullptr;                                               // StepInputs
  size_t tokens = 0, slots = 0, cosines = 0, sines = 0, last_rows = 0, draws = 0;  // among them
  AttentionInputs all_at, last_at;
  // What the rest of the layer works on: every row, and at the end the last ones alone.
  const CudaAttention* attention = nullptr;
  const AttentionInputs* attention_at = nullptr;
  float* residual = nullptr;
  Bf16* queries = nullptr;
};

}  // namespace penstock
