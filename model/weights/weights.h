#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/buffer.h"
#include "kernels/weight_matrix.h"
#include "model/checkpoint/key_means.h"
#include "model/checkpoint/model_config.h"
#include "model/experts/expert_cache.h"
#include "model/experts/gated_weights.h"
#include "model/weights/formats/tensor_source.h"
#include "model/weights/weight_policy.h"

namespace penstock {

// This room, model/weights, has a model's weights as the forward pass reads them, and fills them
// from a TensorSource or at random. It may use base/, kernels/, model/checkpoint, model/experts and
// model/weights/formats. It does not know how a step is computed.

// A mixture of experts.
struct ExpertLayer {
  std::vector<float> router;          // [experts][hidden]
  std::vector<float> router_bias;     // [experts], or empty
  std::vector<float> choice_bias;     // [experts], or empty
  std::vector<GatedWeights> experts;  // without panels where Weights::expert_cache has them
  std::optional<GatedWeights> shared;
  std::vector<float> shared_gate;  // [hidden]; empty: the shared expert's weight is 1
};

// Multi-head latent attention. Its rotated dimensions are in the first and the second half of the
// keys, whatever the checkpoint has.
struct LatentWeights {
  WeightMatrix query_down;        // [query rank][hidden]; empty: queries are products of the input
  std::vector<float> query_norm;  // [query rank], or empty
  WeightMatrix down;              // [rank + rotated key][hidden]
  std::vector<float> norm;        // [rank]
  // For each head, from its plain query to a query of latents [rank][plain dims], and from what
  // attention adds up to its value [value dims][rank]. Always bf16.
  std::vector<PackedMatrix> queries, values;
  // kv_b_proj itself, if matrices stay in files: then queries and values are empty.
  WeightMatrix up;  // for each head, plain dims, then value dims: [outputs][rank]

  size_t bytes() const;  // of queries and values
};

// The weights of one layer. Norms and biases are f32, matrices bf16 or quantised,
// [outputs][inputs].
struct LayerWeights {
  // [hidden], or empty, as all norms. A layer norm has its biases behind the weights, [2 * hidden].
  std::vector<float> attention_norm;
  WeightMatrix qkv;  // rows: q heads, then k heads, then v heads; with latents q heads only
  std::vector<float> qkv_bias;               // empty if the model has none
  std::vector<float> sinks;                  // [heads], or empty if the model has none
  std::vector<float> q_norm, k_norm;         // [head_dim], or [heads * head_dim] of all heads
  std::vector<float> key_means;              // [kv_heads * head_dim] (KeyMeans), or empty
  WeightMatrix attention_output;             // [hidden][AttentionWidth()]
  std::vector<float> attention_output_bias;  // [hidden], or empty
  std::vector<float> attention_output_norm;  // [hidden]
  std::vector<float> mlp_norm;               // [hidden]
  // Rows alternate 16 of gate, 16 of up (padded to 16); without a gate they are those of up.
  WeightMatrix gate_up;
  std::vector<float> gate_up_bias;     // in the order of the rows, or empty
  WeightMatrix down;                   // [hidden][intermediate]
  std::vector<float> down_bias;        // [hidden], or empty
  std::vector<float> mlp_output_norm;  // [hidden]
  std::optional<ExpertLayer> experts;  // then gate_up and down are empty
  std::optional<LatentWeights> latents;

  std::vector<const WeightMatrix*> Matrices() const;  // all but those of LatentWeights' heads
};

// The parts around the layer for multi-token prediction, which is the last of Weights::layers.
struct MtpWeights {
  std::vector<float> token_norm;   // [hidden], of the token's embedding
  std::vector<float> hidden_norm;  // [hidden], of the hidden state of the token before it
  WeightMatrix projection;         // [hidden][2 * hidden], of both in this order
  std::vector<float> norm;         // [hidden], of the layer's output
};

// Owns a model's weights in the layout of the kernels, each once. Or its matrices stay in files,
// for a device that reads them from there, unless they are quantised (StoreWeights). Immutable
// while a runner uses it.
struct Weights {
  ModelConfig config;
  // The token embeddings, [vocab][hidden]: Bf16, or a matrix if they are quantised or stay in a
  // file; both empty if they are lm_head.
  Buffer embedding;
  std::optional<WeightMatrix> embedding_weight;
  Buffer positions;  // learned, Bf16 [max_position][hidden]; empty if the model has none
  std::vector<LayerWeights> layers;  // config.KvLayers()
  std::optional<MtpWeights> mtp;     // with config.use_mtp
  std::vector<float> final_norm;     // [hidden], or [2 * hidden]
  WeightMatrix lm_head;              // [vocab][hidden]
  // Owns the memory of the matrices' panels where others have it too (model/packed); null: each
  // matrix owns its own.
  std::shared_ptr<const void> shared_memory;
  // Null: the experts of all layers are in memory. It changes while a runner computes.
  std::unique_ptr<ExpertCache> expert_cache;

  void SetKeyMeans(KeyMeans means);  // of this model

  const WeightMatrix* embedding_matrix() const;  // null if the embeddings are a Buffer

  size_t bytes() const;         // memory owned
  size_t matrix_bytes() const;  // all but the embedding table
  // Bytes that a decode step of one sequence reads, where all experts are in memory.
  size_t step_bytes() const;
  bool quantised() const;  // some matrix is
  // The forms of the matrices: "bf16", or for example "int4 g32, lm_head int8 g128".
  std::string MatricesName() const;
  // The same, and ", activations int16" if the CPU's products round them to integers, which those
  // with bf16 and FP8 matrices do not: for people and for the numeric policy in a model's
  // fingerprint.
  std::string FormName() const;

  // The names of the forms, each once; those of the embedding only if it is quantised.
  struct Forms {
    std::vector<std::string> layers, lm_head, embedding;
  };
  Forms FormsInUse() const;
};

// Reads the tensors that `config` requires and packs them one matrix at a time, so that no second
// copy of the model exists. Matrices of f16 and f32 are rounded to bf16, or to `forms`; matrices
// that the checkpoint has quantised keep their codes and scales. Returns NOT_FOUND or
// INVALID_ARGUMENT that names the tensor, its shape and the shape that config.json implies; also if
// `forms` asks to round a matrix that is quantised already.
absl::StatusOr<Weights> LoadWeights(const ModelConfig& config, const TensorSource& source,
                                    const MatrixForms& forms = {});

// As LoadWeights, but a matrix that neither the checkpoint nor `forms` quantises is a StoredMatrix,
// which reads the tensors of `source` when it is asked for rows. So the source's bytes outlive the
// weights.
absl::StatusOr<Weights> StoreWeights(const ModelConfig& config, const TensorSource& source,
                                     const MatrixForms& forms = {});

// Normally distributed matrices and biases, norms of 1, rounded to `forms`: for benchmarks and
// tests.
Weights RandomWeights(const ModelConfig& config, uint64_t seed, float deviation = 0.02f,
                      const MatrixForms& forms = {},
                      std::unique_ptr<ExpertCache> experts = nullptr);

}  // namespace penstock
