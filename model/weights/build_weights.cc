#include <array>
#include <utility>

#include "model/weights/weight_filler.h"

namespace penstock {
namespace {

constexpr int64_t kGate = 16;  // alternating rows of gate and of up projection

int64_t Padded(int64_t intermediate) { return (intermediate + kGate - 1) / kGate * kGate; }

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

using RowMap = std::function<int64_t(int64_t)>;

RowMap From(int64_t first) {
  return [first](int64_t row) { return first + row; };
}

// The row in gate_up of a row of the gate (part 0) or up (part 1) projection.
int64_t GateUpRow(int64_t row, int64_t part) {
  return row / kGate * 2 * kGate + part * kGate + row % kGate;
}

// Heads of queries or keys from row `first` on. Of interleaved pairs, the first dimensions go to
// the first half of the rotated ones and the second dimensions to the second half.
RowMap HeadRows(const ModelConfig& config, int64_t first) {
  if (!config.rope.interleaved) return From(first);
  const int64_t head = config.head_dim, dims = config.rope.RotaryDims(config.head_dim);
  return [=](int64_t row) {
    const int64_t at = row % head;
    return first + (at < dims ? row - at + at % 2 * (dims / 2) + at / 2 : row);
  };
}

absl::Status FillVector(Filler& filler, const std::string& name, int64_t size,
                        std::vector<float>& target) {
  target.resize(static_cast<size_t>(size));
  return filler.Floats(name, {size}, target.data());
}

// A norm of the family without this one stays empty.
absl::Status FillNorm(const ModelConfig& config, const std::string& prefix, std::string_view name,
                      int64_t size, Filler& filler, std::vector<float>& target) {
  if (name.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(FillVector(filler, fmt::format("{}{}.weight", prefix, name), size, target));
  for (float& weight : target) weight += config.norm_offset;
  if (!config.layer_norm) return absl::OkStatus();
  std::vector<float> bias;
  RETURN_IF_ERROR(FillVector(filler, fmt::format("{}{}.bias", prefix, name), size, bias));
  target.insert(target.end(), bias.begin(), bias.end());
  return absl::OkStatus();
}

// The biases of the parts of a matrix, at the places of their rows.
absl::Status FillBiases(Filler& filler, std::span<const MatrixPart> parts, int64_t outputs,
                        std::vector<float>& target) {
  target.assign(static_cast<size_t>(outputs), 0.0f);
  std::vector<float> bias;
  for (const MatrixPart& part : parts) {
    RETURN_IF_ERROR(FillVector(filler, part.module + ".bias", part.rows, bias));
    for (int64_t row = 0; row < part.rows; ++row) target[part.at(row)] = bias[row];
  }
  return absl::OkStatus();
}

// Reads a matrix of a layer that is one tensor of the checkpoint, with `hidden` outputs.
absl::StatusOr<WeightMatrix> FillWhole(const ModelConfig& config, Filler& filler,
                                       const std::string& module, int64_t inputs) {
  const MatrixPart part{module, config.hidden, From(0)};
  return filler.Matrix({.outputs = config.hidden,
                        .inputs = inputs,
                        .stored_inputs = inputs,
                        .parts = {&part, 1},
                        .transposed = config.names.transposed});
}

// The output matrix, or embeddings that are a matrix.
absl::StatusOr<WeightMatrix> FillVocabulary(const ModelConfig& config, Filler& filler,
                                            const std::string& module) {
  const MatrixPart part{module, config.vocab, From(0)};
  return filler.Matrix({.outputs = config.vocab,
                        .inputs = config.hidden,
                        .stored_inputs = config.hidden,
                        .lm_head = true,
                        .parts = {&part, 1}});
}

// The place of a row that is stored in groups: the queries of a head of keys, the key, the value.
RowMap GroupedRows(const ModelConfig& config) {
  const int64_t head = config.head_dim, queries = config.heads / config.kv_heads;
  const int64_t keys = int64_t{config.heads} * head;
  const int64_t values = keys + int64_t{config.kv_heads} * head;
  return [=](int64_t row) {
    const int64_t group = row / ((queries + 2) * head), at = row % ((queries + 2) * head);
    if (at < queries * head) return group * queries * head + at;
    const int64_t first = at < (queries + 1) * head ? keys : values;
    return first + group * head + at % head;
  };
}

std::vector<MatrixPart> QkvParts(const ModelConfig& config, const std::string& prefix) {
  const int64_t query = int64_t{config.heads} * config.head_dim;
  const int64_t key = int64_t{config.kv_heads} * config.head_dim;
  if (!config.names.qkv.empty()) {
    const bool groups = config.names.qkv_order == QkvOrder::kGroups;
    return {{prefix + std::string(config.names.qkv), QkvRows(config),
             groups ? GroupedRows(config) : From(0)}};
  }
  return {{prefix + "q_proj", query, HeadRows(config, 0)},
          {prefix + "k_proj", key, HeadRows(config, query)},
          {prefix + "v_proj", key, From(query + key)}};
}

absl::Status FillQkNorms(const ModelConfig& config, const std::string& prefix, Filler& filler,
                         LayerWeights& layer) {
  if (config.qk_norm == QkNorm::kNone) return absl::OkStatus();
  const int64_t heads = config.qk_norm == QkNorm::kWidth ? config.heads : 1;
  const int64_t kv_heads = config.qk_norm == QkNorm::kWidth ? config.kv_heads : 1;
  RETURN_IF_ERROR(
      FillNorm(config, prefix, "q_norm", heads * config.head_dim, filler, layer.q_norm));
  return FillNorm(config, prefix, "k_norm", kv_heads * config.head_dim, filler, layer.k_norm);
}

absl::Status FillAttention(const ModelConfig& config, const std::string& prefix, Filler& filler,
                           LayerWeights& layer) {
  if (config.HasLatents()) return FillLatents(config, prefix, filler, layer);
  const std::vector<MatrixPart> parts = QkvParts(config, prefix);
  ASSIGN_OR_RETURN(layer.qkv, filler.Matrix({.outputs = QkvRows(config),
                                             .inputs = config.hidden,
                                             .stored_inputs = config.hidden,
                                             .parts = parts,
                                             .transposed = config.names.transposed,
                                             .stacked = true}));
  if (config.qkv_bias) {
    RETURN_IF_ERROR(FillBiases(filler, parts, QkvRows(config), layer.qkv_bias));
  }
  return FillQkNorms(config, prefix, filler, layer);
}

absl::Status FillAttentionOutput(const ModelConfig& config, const std::string& prefix,
                                 Filler& filler, LayerWeights& layer) {
  const std::string output = prefix + std::string(config.names.attention_output);
  const int64_t width = config.AttentionWidth();
  ASSIGN_OR_RETURN(layer.attention_output, FillWhole(config, filler, output, width));
  if (config.output_bias) {
    RETURN_IF_ERROR(
        FillVector(filler, output + ".bias", config.hidden, layer.attention_output_bias));
  }
  if (!config.attention_sinks) return absl::OkStatus();
  return FillVector(filler, prefix + std::string(config.names.sinks), config.heads, layer.sinks);
}

std::vector<MatrixPart> GateUpParts(const LayerNames& names, const std::string& prefix,
                                    int64_t intermediate) {
  if (!names.HasGate()) return {{prefix + std::string(names.up), intermediate, From(0)}};
  if (names.gpt_oss_experts) {
    return {{prefix + std::string(names.gate_up), 2 * intermediate,
             [](int64_t row) { return GateUpRow(row / 2, row % 2); }}};
  }
  if (!names.gate_up.empty()) {
    return {{prefix + std::string(names.gate_up), 2 * intermediate,
             [=](int64_t row) { return GateUpRow(row % intermediate, row / intermediate); }}};
  }
  return {{prefix + std::string(names.gate), intermediate,
           [](int64_t row) { return GateUpRow(row, 0); }},
          {prefix + std::string(names.up), intermediate,
           [](int64_t row) { return GateUpRow(row, 1); }}};
}

int64_t GateUpRows(const ModelConfig& config, int64_t intermediate) {
  return (config.names.HasGate() ? 2 : 1) * Padded(intermediate);
}

// The matrices of a dense MLP or of an expert.
absl::StatusOr<GatedWeights> FillGated(const ModelConfig& config, const std::string& prefix,
                                       int64_t intermediate, Filler& filler) {
  const auto parts = GateUpParts(config.names, prefix, intermediate);
  const MatrixPart down{prefix + std::string(config.names.down), config.hidden, From(0)};
  const bool transposed = config.names.transposed || config.names.gpt_oss_experts;
  GatedWeights weights;
  ASSIGN_OR_RETURN(weights.gate_up, filler.Matrix({.outputs = GateUpRows(config, intermediate),
                                                   .inputs = config.hidden,
                                                   .stored_inputs = config.hidden,
                                                   .parts = parts,
                                                   .transposed = transposed}));
  ASSIGN_OR_RETURN(weights.down, filler.Matrix({.outputs = config.hidden,
                                                .inputs = Padded(intermediate),
                                                .stored_inputs = intermediate,
                                                .parts = {&down, 1},
                                                .transposed = transposed}));
  return weights;
}

absl::Status FillExpertBiases(const ModelConfig& config, const std::string& prefix, Filler& filler,
                              GatedWeights& expert) {
  const int64_t intermediate = config.experts.intermediate;
  const auto parts = GateUpParts(config.names, prefix, intermediate);
  RETURN_IF_ERROR(FillBiases(filler, parts, GateUpRows(config, intermediate), expert.gate_up_bias));
  return FillVector(filler, prefix + std::string(config.names.down) + ".bias", config.hidden,
                    expert.down_bias);
}

absl::Status FillMlp(const ModelConfig& config, const std::string& prefix, Filler& filler,
                     LayerWeights& layer) {
  ASSIGN_OR_RETURN(GatedWeights weights, FillGated(config, prefix, config.intermediate, filler));
  layer.gate_up = std::move(weights.gate_up);
  layer.down = std::move(weights.down);
  if (!config.mlp_bias) return absl::OkStatus();
  const auto parts = GateUpParts(config.names, prefix, config.intermediate);
  const int64_t rows = GateUpRows(config, config.intermediate);
  RETURN_IF_ERROR(FillBiases(filler, parts, rows, layer.gate_up_bias));
  return FillVector(filler, prefix + std::string(config.names.down) + ".bias", config.hidden,
                    layer.down_bias);
}

// `cache` takes the routed experts, unless it is null.
absl::StatusOr<ExpertLayer> FillExperts(const ModelConfig& config, const std::string& prefix,
                                        Filler& filler, ExpertCache* cache) {
  const ExpertConfig& experts = config.experts;
  ExpertLayer layer;
  layer.router.resize(static_cast<size_t>(experts.count) * static_cast<size_t>(config.hidden));
  const std::string router = prefix + std::string(config.names.router);
  RETURN_IF_ERROR(
      filler.Floats(router + ".weight", {experts.count, config.hidden}, layer.router.data()));
  if (experts.biases) {
    RETURN_IF_ERROR(FillVector(filler, router + ".bias", experts.count, layer.router_bias));
  }
  if (experts.choice_bias) {
    RETURN_IF_ERROR(
        FillVector(filler, router + ".e_score_correction_bias", experts.count, layer.choice_bias));
  }
  for (int32_t e = 0; e < experts.count; ++e) {
    const std::string name = fmt::format("{}experts.{}.", prefix, e);
    ASSIGN_OR_RETURN(GatedWeights expert, FillGated(config, name, experts.intermediate, filler));
    if (experts.biases) RETURN_IF_ERROR(FillExpertBiases(config, name, filler, expert));
    if (cache != nullptr) RETURN_IF_ERROR(cache->Add(expert));
    layer.experts.push_back(std::move(expert));
  }
  if (experts.shared_intermediate == 0) return layer;
  const std::string shared = prefix + std::string(config.names.shared);
  ASSIGN_OR_RETURN(layer.shared,
                   FillGated(config, shared + ".", experts.shared_intermediate, filler));
  if (!experts.shared_gate) return layer;
  layer.shared_gate.resize(static_cast<size_t>(config.hidden));
  RETURN_IF_ERROR(
      filler.Floats(shared + "_gate.weight", {1, config.hidden}, layer.shared_gate.data()));
  return layer;
}

absl::Status FillLayer(const ModelConfig& config, int32_t index, Filler& filler, Weights& weights) {
  LayerWeights& layer = weights.layers[static_cast<size_t>(index)];
  const LayerNames& names = config.names;
  const std::string prefix = fmt::format("{}{}.", names.layers, index);
  const auto norm = [&](std::string_view name, std::vector<float>& target) {
    return FillNorm(config, prefix, name, config.hidden, filler, target);
  };
  RETURN_IF_ERROR(norm(names.attention_norm, layer.attention_norm));
  const std::string attention = fmt::format("{}{}.", prefix, names.attention);
  RETURN_IF_ERROR(FillAttention(config, attention, filler, layer));
  RETURN_IF_ERROR(FillAttentionOutput(config, attention, filler, layer));
  RETURN_IF_ERROR(norm(names.attention_output_norm, layer.attention_output_norm));
  RETURN_IF_ERROR(norm(names.mlp_norm, layer.mlp_norm));
  const std::string mlp = fmt::format("{}{}.", prefix, names.mlp);
  if (config.HasExperts(index)) {
    ASSIGN_OR_RETURN(layer.experts, FillExperts(config, mlp, filler, weights.expert_cache.get()));
  } else {
    RETURN_IF_ERROR(FillMlp(config, mlp, filler, layer));
  }
  return norm(names.mlp_output_norm, layer.mlp_output_norm);
}

// The norms and the projection around the layer for multi-token prediction. transformers has
// no code for it; the names are those of the checkpoints.
absl::StatusOr<MtpWeights> FillMtp(const ModelConfig& config, Filler& filler) {
  const std::string prefix = fmt::format("{}{}.", config.names.layers, config.layers);
  MtpWeights mtp;
  const auto norm = [&](std::string_view name, std::vector<float>& target) {
    return FillNorm(config, prefix, name, config.hidden, filler, target);
  };
  RETURN_IF_ERROR(norm("enorm", mtp.token_norm));
  RETURN_IF_ERROR(norm("hnorm", mtp.hidden_norm));
  RETURN_IF_ERROR(norm("shared_head.norm", mtp.norm));
  ASSIGN_OR_RETURN(mtp.projection,
                   FillWhole(config, filler, prefix + "eh_proj", 2 * int64_t{config.hidden}));
  return mtp;
}

// A table of bf16 rows.
absl::Status FillTable(Filler& filler, const std::string& module,
                       const std::array<int64_t, 2>& shape, Buffer& table) {
  table = Buffer(static_cast<size_t>(shape[0]) * static_cast<size_t>(shape[1]) * sizeof(Bf16));
  return filler.Table(module + ".weight", shape[0], shape[1], table.as<Bf16>());
}

absl::Status FillEmbedding(const ModelConfig& config, const std::string& module, Filler& filler,
                           Weights& weights) {
  if (filler.IsMatrix(module)) {
    ASSIGN_OR_RETURN(weights.embedding_weight, FillVocabulary(config, filler, module));
    return absl::OkStatus();
  }
  return FillTable(filler, module, {config.vocab, config.hidden}, weights.embedding);
}

}  // namespace

absl::StatusOr<Weights> BuildWeights(const ModelConfig& config, Filler& filler,
                                     std::unique_ptr<ExpertCache> experts) {
  RETURN_IF_ERROR(CheckConfig(config));
  Weights weights;
  weights.config = config;
  weights.expert_cache = std::move(experts);
  const LayerNames& names = config.names;
  const std::string embedding(names.embedding);
  ASSIGN_OR_RETURN(
      weights.lm_head,
      FillVocabulary(config, filler, config.tied_embeddings ? embedding : std::string(names.head)));
  if (!config.tied_embeddings) {
    RETURN_IF_ERROR(FillEmbedding(config, embedding, filler, weights));
  }
  if (!names.positions.empty()) {
    RETURN_IF_ERROR(FillTable(filler, std::string(names.positions),
                              {config.max_position, config.hidden}, weights.positions));
  }
  weights.layers.resize(static_cast<size_t>(config.KvLayers()));
  for (int32_t i = 0; i < config.KvLayers(); ++i) {
    RETURN_IF_ERROR(FillLayer(config, i, filler, weights));
  }
  if (config.use_mtp) {
    ASSIGN_OR_RETURN(weights.mtp, FillMtp(config, filler));
  }
  RETURN_IF_ERROR(
      FillNorm(config, "", names.final_norm, config.hidden, filler, weights.final_norm));
  if (weights.expert_cache != nullptr) weights.expert_cache->Start();
  return weights;
}

}  // namespace penstock
