#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/packed_matrix.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

enum class TensorDtype { kBf16, kF16, kF32 };

// One tensor of a checkpoint, row-major, little-endian. `bytes` may be unaligned and stays valid
// until the next Get of the same source.
struct TensorView {
  TensorDtype dtype = TensorDtype::kBf16;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// Interface: the source of weights. Tensors have Hugging Face names
// ("model.layers.0.mlp.up_proj.weight").
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // Returns NOT_FOUND if the checkpoint has no such tensor.
  virtual absl::StatusOr<TensorView> Get(const std::string& name) const = 0;
};

// The weights of one layer. Norms and biases are f32, matrices bf16 [outputs][inputs].
struct LayerWeights {
  std::vector<float> attention_norm;         // [hidden]
  PackedMatrix qkv;                          // rows: q heads, then k heads, then v heads
  std::vector<float> qkv_bias;               // empty if the model has none
  std::vector<float> q_norm, k_norm;         // [head_dim], or empty
  PackedMatrix attention_output;             // [hidden][heads * head_dim]
  std::vector<float> attention_output_bias;  // [hidden], or empty
  std::vector<float> mlp_norm;               // [hidden]
  PackedMatrix gate_up;                      // rows alternate 16 of gate, 16 of up (padded to 16)
  std::vector<float> gate_up_bias;           // in the order of the rows, or empty
  PackedMatrix down;                         // [hidden][intermediate]
  std::vector<float> down_bias;              // [hidden], or empty
};

// Owns a model's weights in the layout of the kernels, bf16, each once. Immutable while a runner
// uses it.
struct Weights {
  ModelConfig config;
  Buffer embedding;  // Bf16 [vocab][hidden]; empty if tied to lm_head
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [hidden]
  PackedMatrix lm_head;           // [vocab][hidden]

  size_t bytes() const;         // memory owned
  size_t matrix_bytes() const;  // read by one decode step: all but the embedding table
};

// Reads the tensors that `config` requires and packs them one at a time, so that no second copy of
// the model exists. f16 and f32 are rounded to bf16. Returns NOT_FOUND or INVALID_ARGUMENT that
// names the tensor, its shape and the shape that config.json implies.
absl::StatusOr<Weights> LoadWeights(const ModelConfig& config, const TensorSource& source);

// Normally distributed matrices and biases, norms of 1: for benchmarks and tests.
Weights RandomWeights(const ModelConfig& config, uint64_t seed, float deviation = 0.02f);

}  // namespace penstock
