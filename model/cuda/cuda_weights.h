#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/gemm.h"
#include "model/cuda/experts/device_experts.h"
#include "model/cuda/latents/device_latents.h"
#include "model/cuda/mtp/mtp_pass.h"
#include "model/weights/model_shard.h"
#include "model/weights/weights.h"

namespace penstock {

// Owns a matrix in device memory, row-major bf16 or codes, with its bias in f32 (null if it has
// none). It may be moved.
struct CudaMatrix {
  cuda::DeviceBuffer memory;
  std::vector<cuda::WeightCodes> sections;  // of the codes
  cuda::DeviceBuffer bias_memory;
  cuda::Weight weight;
  const float* bias = nullptr;
};

// Owns one layer's weights in device memory.
struct CudaLayer {
  // All f32, as in LayerWeights, and empty where the model has none. Sinks are those of this GPU's
  // heads.
  cuda::DeviceBuffer attention_norm, attention_output_norm, mlp_norm, mlp_output_norm;
  cuda::DeviceBuffer q_norm, k_norm, sinks;
  CudaMatrix qkv;  // with latents queries only
  // With latents: to them, and to what queries are products of, which may be empty. In whole.
  CudaMatrix latent_down, query_down;
  std::optional<DeviceLatents> latents;
  CudaMatrix attention_output;
  // The MLP, or the expert that all tokens use. Empty: neither.
  CudaMatrix gate_up;  // all rows of gate, then all of up; without a gate those of up
  CudaMatrix down;
  std::optional<DeviceExperts> experts;

  bool HasMlp() const { return down.weight.outputs > 0; }
  // The matrices that multiply every row.
  std::vector<const CudaMatrix*> Matrices() const;
};

// Owns a model's weights, or one shard of them, in device memory, each once. Immutable after
// Upload.
struct CudaWeights {
  // Quantised matrices keep their codes, in the order of inputs of the products that will read
  // them, where the kernels take these (CodeSections); others become bf16. Where the matrices of
  // `weights` stay in files, takes the shard's rows and inputs from there. `threads` threads read
  // them. Returns RESOURCE_EXHAUSTED that names the tensor. `weights` is only read.
  static absl::StatusOr<std::unique_ptr<CudaWeights>> Upload(const Weights& weights,
                                                             const ModelShard& shard,
                                                             cuda::InputOrder order, int threads,
                                                             void* stream);

  size_t bytes() const;
  // The matrices that multiply rows of a step, but for lm_head and routed experts.
  std::vector<const CudaMatrix*> Matrices() const;

  cuda::DeviceBuffer embedding;   // Bf16 [vocab][hidden]; empty if it is a bf16 lm_head
  cuda::DeviceBuffer positions;   // Bf16 [max_position][hidden]; empty if none are learned
  std::vector<CudaLayer> layers;  // as Weights::layers
  // The parts of the layer for multi-token prediction that every GPU has in whole; empty without
  // it.
  DeviceMtp mtp;
  CudaMatrix mtp_projection;
  cuda::DeviceBuffer final_norm;
  CudaMatrix lm_head;  // empty on ranks other than 0, unless it is the embedding too
};

}  // namespace penstock
