#include "lab/plan/model_cost.h"

#include <algorithm>

namespace penstock {
namespace {

// Elements of the matrices of a layer's MLP: of all experts, or of those that one token uses.
uint64_t MlpMatrices(const ModelConfig& config, int32_t layer, int32_t experts) {
  const uint64_t matrices = (config.names.HasGate() ? 3 : 2) * uint64_t(config.hidden);
  if (!config.HasExperts(layer)) return matrices * config.intermediate;
  uint64_t elements = matrices * (uint64_t(experts) * config.experts.intermediate +
                                  config.experts.shared_intermediate) +
                      uint64_t(config.experts.count) * config.hidden;  // the router
  if (config.experts.shared_intermediate > 0) elements += uint64_t(config.hidden);
  return elements;
}

// Elements of the matrices of all layers.
uint64_t Matrices(const ModelConfig& config, int32_t experts) {
  const auto hidden = static_cast<uint64_t>(config.hidden);
  const uint64_t query = uint64_t(config.heads) * config.head_dim;
  const uint64_t key_value = uint64_t(config.kv_heads) * config.head_dim;
  uint64_t elements = 0;
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    elements += hidden * (query + 2 * key_value) + query * hidden;
    elements += MlpMatrices(config, layer, experts);
  }
  return elements;
}

uint64_t LayerVectors(const ModelConfig& config) {
  const auto hidden = static_cast<uint64_t>(config.hidden);
  const uint64_t query = uint64_t(config.heads) * config.head_dim;
  const uint64_t key_value = uint64_t(config.kv_heads) * config.head_dim;
  const LayerNames& names = config.names;
  uint64_t elements = 0;
  for (const std::string_view norm :
       {names.attention_norm, names.attention_output_norm, names.mlp_norm, names.mlp_output_norm}) {
    if (!norm.empty()) elements += (config.layer_norm ? 2 : 1) * hidden;
  }
  if (config.qkv_bias) elements += query + 2 * key_value;
  if (config.output_bias) elements += hidden;
  const uint64_t up = config.names.HasGate() ? 2 : 1;
  if (config.mlp_bias) elements += up * uint64_t(config.intermediate) + hidden;
  if (config.qk_norm == QkNorm::kHead) elements += 2 * uint64_t(config.head_dim);
  if (config.qk_norm == QkNorm::kWidth) elements += query + key_value;
  return elements;
}

int32_t ShortestWindow(const ModelConfig& config) {
  int32_t shortest = 0;
  for (const int32_t window : config.sliding_window) {
    if (window > 0 && (shortest == 0 || window < shortest)) shortest = window;
  }
  return shortest;
}

struct Codec {
  const char* name;
  double bits;  // an element
};
constexpr Codec kCodecs[] = {{"lx16", 12}, {"lxr", 11.2},  {"i8", 8.25},
                             {"f8", 8},    {"k8v4", 6.25}, {"i4r", 4.25}};

}  // namespace

double ModelCost::PrefillFlops(double tokens, double cached) const {
  const double computed = std::max(0.0, tokens - cached);
  // Token t attends to t + 1 others, or to its window.
  double pairs = (tokens * (tokens + 1) - cached * (cached + 1)) / 2;
  if (window > 0) pairs = std::min(pairs, computed * window);
  return computed * flops_per_token + pairs * attention_flops_a_pair + head_flops;
}

ModelCost CostOf(const ModelConfig& config, int32_t block_tokens) {
  const auto layers = static_cast<uint64_t>(config.layers);
  const uint64_t embedding = uint64_t(config.vocab) * config.hidden;
  const uint64_t matrices = Matrices(config, config.experts.count);
  const uint64_t used = Matrices(config, config.experts.per_token);  // by one token
  const uint64_t vectors =
      layers * LayerVectors(config) + (config.layer_norm ? 2 : 1) * uint64_t(config.hidden);
  const uint64_t body = matrices + vectors;
  ModelCost cost;
  cost.parameters = body + (config.tied_embeddings ? 1 : 2) * embedding;
  if (!config.names.positions.empty()) {
    cost.parameters += uint64_t(config.max_position) * config.hidden;
  }
  cost.weight_bytes = 2 * cost.parameters;
  cost.step_bytes = 2 * (used + vectors + embedding);
  cost.flops_per_token = 2.0 * static_cast<double>(used);
  cost.head_flops = 2.0 * static_cast<double>(embedding);
  cost.attention_flops_a_pair = 4.0 * config.layers * config.heads * config.head_dim;
  cost.window = ShortestWindow(config);
  cost.layout = {.layers = config.layers,
                 .kv_heads = config.kv_heads,
                 .head_dim = config.head_dim,
                 .block_tokens = block_tokens};
  return cost;
}

std::vector<KvForm> KvFormsOf(const ModelCost& cost) {
  const KvLayout& layout = cost.layout;
  const double resident =
      static_cast<double>(layout.PayloadBytes()) / static_cast<double>(layout.block_tokens);
  const double elements = 2.0 * layout.layers * layout.kv_heads * layout.head_dim;
  std::vector<KvForm> forms = {{"bf16", resident, true}};
  for (const Codec& codec : kCodecs) {
    forms.push_back({codec.name, elements * codec.bits / 8, false});
  }
  return forms;
}

}  // namespace penstock
