#include "model/forward/weights.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "model/forward/weight_filler.h"

namespace penstock {
namespace {

constexpr int64_t kGate = 16;  // alternating rows of gate and of up projection
constexpr char kBf16Name[] = "bf16";

void AddOnce(const std::string& name, std::vector<std::string>& names) {
  if (std::ranges::find(names, name) == names.end()) names.push_back(name);
}

void AddForms(const WeightMatrix& matrix, std::vector<std::string>& names) {
  if (matrix.packed() != nullptr) AddOnce(kBf16Name, names);
  for (const QuantisedMatrix& section : matrix.quantised()) {
    AddOnce(section.format().Name(), names);
  }
}

std::array<const WeightMatrix*, 4> MatricesOf(const LayerWeights& layer) {
  return {&layer.qkv, &layer.attention_output, &layer.gate_up, &layer.down};
}

int64_t PaddedIntermediate(const ModelConfig& config) {
  return (config.intermediate + kGate - 1) / kGate * kGate;
}

int64_t QkvRows(const ModelConfig& config) {
  return int64_t{config.heads + 2 * config.kv_heads} * config.head_dim;
}

absl::Status CheckConfig(const ModelConfig& config) {
  if (config.layers < 1 || config.hidden < 1 || config.intermediate < 1 || config.vocab < 1) {
    return InvalidArgument("layers, hidden, intermediate and vocab must be positive: {} {} {} {}",
                           config.layers, config.hidden, config.intermediate, config.vocab);
  }
  if (config.hidden % 2 != 0) {
    return InvalidArgument("hidden_size is {}, it must be even", config.hidden);
  }
  if (config.head_dim < 8 || config.head_dim % 8 != 0) {
    return InvalidArgument("head_dim is {}, it must be a multiple of 8", config.head_dim);
  }
  if (config.kv_heads < 1 || config.heads % config.kv_heads != 0 ||
      config.heads / config.kv_heads > 128) {
    return InvalidArgument(
        "num_attention_heads is {} and num_key_value_heads {}: the first must be a multiple of the "
        "second, up to 128 times it",
        config.heads, config.kv_heads);
  }
  return absl::OkStatus();
}

// The row in gate_up of a row of the gate (part 0) or up (part 1) projection.
int64_t GateUpRow(int64_t row, int64_t part) {
  return row / kGate * 2 * kGate + part * kGate + row % kGate;
}

int64_t After(int64_t row, int64_t part) { return part + row; }

absl::Status FillVector(Filler& filler, const std::string& name, int64_t size,
                        std::vector<float>& target) {
  target.resize(static_cast<size_t>(size));
  return filler.Vector(name, size, target.data());
}

// Reads a matrix that is one tensor of the checkpoint.
absl::StatusOr<WeightMatrix> FillWhole(Filler& filler, const std::string& module, int64_t outputs,
                                       int64_t inputs, int64_t stored_inputs,
                                       bool lm_head = false) {
  const MatrixPart part{module, outputs, After, 0};
  return filler.Matrix({.outputs = outputs,
                        .inputs = inputs,
                        .stored_inputs = stored_inputs,
                        .lm_head = lm_head,
                        .parts = {&part, 1}});
}

absl::Status FillAttention(const ModelConfig& config, const std::string& prefix, Filler& filler,
                           LayerWeights& layer) {
  const int64_t query = int64_t{config.heads} * config.head_dim;
  const int64_t key = int64_t{config.kv_heads} * config.head_dim;
  const MatrixPart parts[] = {{prefix + "q_proj", query, After, 0},
                              {prefix + "k_proj", key, After, query},
                              {prefix + "v_proj", key, After, query + key}};
  ASSIGN_OR_RETURN(layer.qkv, filler.Matrix({.outputs = QkvRows(config),
                                             .inputs = config.hidden,
                                             .stored_inputs = config.hidden,
                                             .parts = parts,
                                             .stacked = true}));
  if (config.qkv_bias) layer.qkv_bias.resize(static_cast<size_t>(QkvRows(config)));
  for (const MatrixPart& part : parts) {
    if (!config.qkv_bias) break;
    RETURN_IF_ERROR(
        filler.Vector(part.module + ".bias", part.rows, layer.qkv_bias.data() + part.place));
  }
  if (config.qk_norm) {
    RETURN_IF_ERROR(FillVector(filler, prefix + "q_norm.weight", config.head_dim, layer.q_norm));
    RETURN_IF_ERROR(FillVector(filler, prefix + "k_norm.weight", config.head_dim, layer.k_norm));
  }
  ASSIGN_OR_RETURN(layer.attention_output,
                   FillWhole(filler, prefix + "o_proj", config.hidden, query, query));
  if (config.output_bias) {
    RETURN_IF_ERROR(
        FillVector(filler, prefix + "o_proj.bias", config.hidden, layer.attention_output_bias));
  }
  return absl::OkStatus();
}

absl::Status FillMlp(const ModelConfig& config, const std::string& prefix, Filler& filler,
                     LayerWeights& layer) {
  const int64_t padded = PaddedIntermediate(config);
  const MatrixPart parts[] = {{prefix + "gate_proj", config.intermediate, GateUpRow, 0},
                              {prefix + "up_proj", config.intermediate, GateUpRow, 1}};
  ASSIGN_OR_RETURN(layer.gate_up, filler.Matrix({.outputs = 2 * padded,
                                                 .inputs = config.hidden,
                                                 .stored_inputs = config.hidden,
                                                 .parts = parts}));
  if (config.mlp_bias) layer.gate_up_bias.assign(static_cast<size_t>(2 * padded), 0.0f);
  for (const MatrixPart& part : parts) {
    if (!config.mlp_bias) break;
    std::vector<float> bias;
    RETURN_IF_ERROR(FillVector(filler, part.module + ".bias", config.intermediate, bias));
    for (int64_t row = 0; row < config.intermediate; ++row) {
      layer.gate_up_bias[GateUpRow(row, part.place)] = bias[row];
    }
  }
  ASSIGN_OR_RETURN(layer.down, FillWhole(filler, prefix + "down_proj", config.hidden, padded,
                                         config.intermediate));
  if (config.mlp_bias) {
    RETURN_IF_ERROR(FillVector(filler, prefix + "down_proj.bias", config.hidden, layer.down_bias));
  }
  return absl::OkStatus();
}

absl::Status FillLayer(const ModelConfig& config, int32_t index, Filler& filler,
                       LayerWeights& layer) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  RETURN_IF_ERROR(
      FillVector(filler, prefix + "input_layernorm.weight", config.hidden, layer.attention_norm));
  RETURN_IF_ERROR(FillAttention(config, prefix + "self_attn.", filler, layer));
  RETURN_IF_ERROR(FillVector(filler, prefix + "post_attention_layernorm.weight", config.hidden,
                             layer.mlp_norm));
  return FillMlp(config, prefix + "mlp.", filler, layer);
}

absl::Status FillEmbedding(const ModelConfig& config, const std::string& module, Filler& filler,
                           Weights& weights) {
  if (filler.IsQuantised(module)) {
    ASSIGN_OR_RETURN(weights.quantised_embedding,
                     FillWhole(filler, module, config.vocab, config.hidden, config.hidden, true));
    return absl::OkStatus();
  }
  weights.embedding =
      Buffer(static_cast<size_t>(config.vocab) * static_cast<size_t>(config.hidden) * sizeof(Bf16));
  return filler.Table(module + ".weight", config.vocab, config.hidden,
                      weights.embedding.as<Bf16>());
}

}  // namespace

absl::StatusOr<Weights> BuildWeights(const ModelConfig& config, Filler& filler) {
  RETURN_IF_ERROR(CheckConfig(config));
  Weights weights;
  weights.config = config;
  const std::string embedding = "model.embed_tokens";
  ASSIGN_OR_RETURN(weights.lm_head,
                   FillWhole(filler, config.tied_embeddings ? embedding : "lm_head", config.vocab,
                             config.hidden, config.hidden, true));
  if (!config.tied_embeddings) {
    RETURN_IF_ERROR(FillEmbedding(config, embedding, filler, weights));
  }
  weights.layers.resize(static_cast<size_t>(config.layers));
  for (int32_t i = 0; i < config.layers; ++i) {
    RETURN_IF_ERROR(FillLayer(config, i, filler, weights.layers[i]));
  }
  RETURN_IF_ERROR(FillVector(filler, "model.norm.weight", config.hidden, weights.final_norm));
  return weights;
}

size_t Weights::matrix_bytes() const {
  size_t bytes = lm_head.bytes();
  for (const LayerWeights& layer : layers) {
    for (const WeightMatrix* matrix : MatricesOf(layer)) bytes += matrix->bytes();
  }
  return bytes;
}

const WeightMatrix* Weights::embedding_matrix() const {
  if (quantised_embedding.has_value()) return &*quantised_embedding;
  return embedding.bytes() == 0 ? &lm_head : nullptr;
}

size_t Weights::bytes() const {
  const size_t quantised = quantised_embedding.has_value() ? quantised_embedding->bytes() : 0;
  return matrix_bytes() + embedding.bytes() + quantised;
}

bool Weights::quantised() const { return FormName() != kBf16Name; }

std::string Weights::FormName() const {
  std::vector<std::string> names;
  for (const LayerWeights& layer : layers) {
    for (const WeightMatrix* matrix : MatricesOf(layer)) AddForms(*matrix, names);
  }
  std::vector<std::string> head, table;
  AddForms(lm_head, head);
  if (quantised_embedding.has_value()) AddForms(*quantised_embedding, table);
  std::string all = fmt::format("{}", fmt::join(names, " and "));
  if (all == kBf16Name && head[0] == kBf16Name && table.empty()) return all;
  return fmt::format("{}, lm_head {}{}, activations int16", all, head[0],
                     table.empty() ? "" : ", embedding " + table[0]);
}

}  // namespace penstock
