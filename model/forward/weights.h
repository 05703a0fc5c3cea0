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

// One tensor of a checkpoint, row-major, little-endian. `bytes` need not be aligned and stays valid
// until the next Get of the same source.
struct TensorView {
  TensorDtype dtype = TensorDtype::kBf16;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// Where weights come from: tensors by their Hugging Face names
// ("model.layers.0.mlp.up_proj.weight").
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // NOT_FOUND where the checkpoint has no such tensor.
  virtual absl::StatusOr<TensorView> Get(const std::string& name) const = 0;
};

struct LayerWeights {
  std::vector<float> attention_norm;         // [hidden]
  PackedMatrix qkv;                          // q heads, then k heads, then v heads
  std::vector<float> qkv_bias;               // empty without
  std::vector<float> q_norm, k_norm;         // [head_dim], empty without
  PackedMatrix attention_output;             // [hidden][heads * head_dim]
  std::vector<float> attention_output_bias;  // [hidden], empty without
  std::vector<float> mlp_norm;               // [hidden]
  PackedMatrix gate_up;                      // rows alternate 16 of gate, 16 of up (padded to 16)
  std::vector<float> gate_up_bias;           // in the order of the rows; empty without
  PackedMatrix down;                         // [hidden][intermediate]
  std::vector<float> down_bias;              // [hidden], empty without
};

// A model's weights as kernels read them, bf16, each once. Immutable while a runner uses it.
struct Weights {
  ModelConfig config;
  Buffer embedding;  // Bf16 [vocab][hidden]; empty when tied: lm_head serves both
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [hidden]
  PackedMatrix lm_head;           // [vocab][hidden]

  size_t bytes() const;         // of memory held
  size_t matrix_bytes() const;  // that one decode step reads: all but the embedding table
};

// Reads every tensor that `config` asks for and packs it, one at a time, so that no second copy of
// the model exists. f16 and f32 are rounded to bf16. NOT_FOUND or INVALID_ARGUMENT name the tensor,
// its shape and the shape that config.json implies.
absl::StatusOr<Weights> LoadWeights(const ModelConfig& config, const TensorSource& source);

// Normal matrices and biases, norms 1: for benches and tests.
Weights RandomWeights(const ModelConfig& config, uint64_t seed, float deviation = 0.02f);

}  // namespace penstock
