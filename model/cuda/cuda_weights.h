#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/gemm.h"
#include "model/forward/model_shard.h"
#include "model/forward/weights.h"

namespace penstock {

// A matrix in device memory, row-major bf16, with its bias in f32 (null without).
struct CudaMatrix {
  cuda::DeviceBuffer memory;
  cuda::DeviceBuffer bias_memory;
  cuda::Weight weight;
  const float* bias = nullptr;
};

struct CudaLayer {
  cuda::DeviceBuffer attention_norm, q_norm, k_norm, mlp_norm;  // f32; q_norm, k_norm may be empty
  CudaMatrix qkv;
  CudaMatrix attention_output;
  CudaMatrix gate_up;  // all rows of gate, then all of up
  CudaMatrix down;
};

// A model's weights in device memory, or a part of them, each once.
struct CudaWeights {
  // RESOURCE_EXHAUSTED names the tensor that found no room. `weights` is only read.
  static absl::StatusOr<std::unique_ptr<CudaWeights>> Upload(const Weights& weights,
                                                             const ModelShard& shard, void* stream);

  size_t bytes() const;

  cuda::DeviceBuffer embedding;  // Bf16 [vocab][hidden]; empty when tied
  std::vector<CudaLayer> layers;
  cuda::DeviceBuffer final_norm;
  CudaMatrix lm_head;  // empty on ranks that make no logits, unless it is the embedding
};

}  // namespace penstock
