#include "model/checkpoint/model_layers.h"

#include <algorithm>
#include <iterator>

#include "model/checkpoint/config_limits.h"

namespace penstock {
namespace {

constexpr int32_t kMaxExperts = 1024;
constexpr int32_t kMaxPerToken = 64;
constexpr double kGptOssLimit = 7;  // as transformers, if the file does not say
constexpr int64_t kMaxShared = 64;

int32_t Window(JsonFields& fields, WindowRule rule) {  // 0: none
  const auto window = [&](std::optional<int64_t> absent) {
    return static_cast<int32_t>(fields.Int("sliding_window", 1, kMaxPosition, absent));
  };
  if (rule == WindowRule::kNone) return 0;
  if (rule == WindowRule::kAlternate) return window(std::nullopt);
  if (rule == WindowRule::kAll) return window(0);
  if (!fields.Bool("use_sliding_window", false)) return 0;
  if (rule == WindowRule::kRefused) fields.Fail("use_sliding_window", "false");
  return window(0);
}

std::vector<bool> TypedLayers(JsonFields& fields, const std::vector<std::string>& types,
                              int32_t window, int32_t layers) {
  if (static_cast<int32_t>(types.size()) != layers) {
    fields.Fail("layer_types", fmt::format("one entry per layer ({})", layers));
  }
  std::vector<bool> slides;
  for (const std::string& type : types) {
    slides.push_back(type == "sliding_attention");
    if (!slides.back() && type != "full_attention") {
      fields.Fail("layer_types", "full_attention or sliding_attention for each layer");
    }
    if (slides.back() && window == 0) {
      fields.Fail("layer_types", "full_attention only, as no sliding_window is in use");
    }
  }
  return slides;
}

// The layers whose attention has the window.
std::vector<bool> SlidingLayers(JsonFields& fields, const ModelFamily& family, int32_t window,
                                int32_t layers) {
  const auto types = fields.Strings("layer_types", kMaxModelLayers);
  if (!types.empty()) return TypedLayers(fields, types, window, layers);
  std::vector<bool> slides(static_cast<size_t>(layers), window != 0);
  if (window == 0) return slides;
  if (family.windows == WindowRule::kUpper) {
    const int64_t first = fields.Int("max_window_layers", 0, kMaxPosition, 28);
    for (int32_t i = 0; i < layers; ++i) slides[i] = i >= first;
  }
  if (family.windows == WindowRule::kAlternate) {
    const int64_t every = fields.Int("sliding_window_pattern", 1, kMaxModelLayers,
                                     family.absent.sliding_window_pattern);
    for (int32_t i = 0; i < layers; ++i) slides[i] = (i + 1) % every != 0;
  }
  return slides;
}

// no_rope_layers has 1 for a layer with RoPE. Without it, every no_rope_layer_interval-th layer has
// none.
std::vector<LayerRope> NoRopeLayers(JsonFields& fields, int32_t layers) {
  const auto marks = fields.IntOrList("no_rope_layers", 0, 1, kMaxModelLayers);
  const int64_t every = fields.Int("no_rope_layer_interval", 1, kMaxModelLayers, 4);
  std::vector<LayerRope> ropes;
  if (!marks.empty() && std::ssize(marks) != layers) {
    fields.Fail("no_rope_layers", fmt::format("one entry per layer ({})", layers));
    return ropes;
  }
  for (int32_t i = 0; i < layers; ++i) {
    const bool rotates = marks.empty() ? (i + 1) % every != 0 : marks[i] == 1;
    ropes.push_back(rotates ? LayerRope::kMain : LayerRope::kNone);
  }
  return ropes;
}

// Every decoder_sparse_step-th layer has experts, unless mlp_only_layers lists it.
std::vector<bool> DenseLayers(JsonFields& fields, int32_t layers) {
  const int64_t step = fields.Int("decoder_sparse_step", 1, kMaxModelLayers, 1);
  std::vector<bool> dense;
  for (int32_t i = 0; i < layers; ++i) dense.push_back((i + 1) % step != 0);
  for (const int64_t layer :
       fields.IntOrList("mlp_only_layers", 0, kMaxModelLayers, kMaxModelLayers)) {
    if (layer < layers) dense[static_cast<size_t>(layer)] = true;
  }
  return dense;
}

// Behind the first first_k_dense_replace layers, every moe_layer_freq-th has experts.
std::vector<bool> FirstLayersDense(JsonFields& fields, int32_t layers) {
  const int64_t first = fields.Int("first_k_dense_replace", 0, kMaxModelLayers, 0);
  const int64_t every = fields.Int("moe_layer_freq", 1, kMaxModelLayers, 1);
  std::vector<bool> dense;
  for (int32_t i = 0; i < layers; ++i) dense.push_back(i < first || i % every != 0);
  return dense;
}

// The groups of experts, and how many of them a token may use.
void ReadGroups(JsonFields& fields, ExpertConfig* experts) {
  experts->groups = static_cast<int32_t>(fields.Int("n_group", 1, experts->count, 1));
  experts->kept_groups = static_cast<int32_t>(fields.Int("topk_group", 1, experts->groups, 1));
  const int32_t size = experts->count / experts->groups;
  if (experts->count % experts->groups != 0 || (experts->groups > 1 && size < 2)) {
    fields.Fail("n_group", fmt::format("a number of groups of two or more, of the {} experts",
                                       experts->count));
  }
  if (experts->kept_groups * size < experts->per_token) {
    fields.Fail("topk_group", fmt::format("as many groups of {} as have num_experts_per_tok ({})",
                                          size, experts->per_token));
  }
}

void ReadDeepseekExperts(JsonFields& fields, ExpertRule rule, int32_t layers,
                         ExpertConfig* experts) {
  experts->shared_intermediate = experts->intermediate * static_cast<int32_t>(fields.Int(
                                                             "n_shared_experts", 0, kMaxShared, 0));
  experts->shared_gate = false;
  experts->dense = FirstLayersDense(fields, layers);
  experts->scale = static_cast<float>(fields.Float("routed_scaling_factor", 1e-3, 1e3, 1));
  experts->sigmoid = experts->choice_bias = rule == ExpertRule::kDeepseekSigmoid;
  const std::string method = experts->sigmoid ? "noaux_tc" : "greedy";
  std::vector<std::string> methods = {method};
  if (!experts->sigmoid) methods.emplace_back("group_limited_greedy");
  const std::string score = experts->sigmoid ? "sigmoid" : "softmax";
  fields.Choice("scoring_func", {score}, score);
  if (fields.Choice("topk_method", methods, method) != "greedy") ReadGroups(fields, experts);
  // With the sum of the weights, DeepSeek-V2's own code leaves the factor out and transformers'
  // does not. No published model has it.
  if (!experts->sigmoid && experts->normalise) fields.Fail("norm_topk_prob", "false");
}

ExpertConfig ReadExperts(JsonFields& fields, const ExpertFields& names, int32_t layers) {
  const auto number = [&](std::string_view key, int64_t min, int64_t max) {
    return static_cast<int32_t>(fields.Int(std::string(key), min, max));
  };
  ExpertConfig experts;
  experts.count = number(names.count, 1, kMaxExperts);
  experts.per_token = number("num_experts_per_tok", 1, std::min(experts.count, kMaxPerToken));
  if (!names.per_token_too.empty() && fields.Has(std::string(names.per_token_too))) {
    number(names.per_token_too, experts.per_token, experts.per_token);
  }
  experts.intermediate = number(names.intermediate, 1, kMaxIntermediate);
  if (!names.shared.empty()) {
    experts.shared_intermediate = number(names.shared, 1, kMaxIntermediate);
  }
  if (!names.normalise.empty()) {
    const bool absent = names.rule == ExpertRule::kDeepseekSigmoid;
    experts.normalise = fields.Bool(std::string(names.normalise), absent);
  }
  if (names.rule != ExpertRule::kSoftmax) {
    ReadDeepseekExperts(fields, names.rule, layers, &experts);
  }
  experts.biases = names.biases;
  if (!names.limit.empty()) {
    experts.gate_limit =
        static_cast<float>(fields.Float(std::string(names.limit), 1e-3, 1e6, kGptOssLimit));
  }
  if (names.sparse_layers) experts.dense = DenseLayers(fields, layers);
  return experts;
}

}  // namespace

void ReadLayers(JsonFields& fields, const ModelFamily& family, ModelConfig* config) {
  const int32_t window = Window(fields, family.windows);
  const std::vector<bool> slides = SlidingLayers(fields, family, window, config->layers);
  if (!fields.status().ok()) return;
  for (const bool layer : slides) {
    // A window that covers all positions is the same as none.
    config->sliding_window.push_back(layer && window < config->max_position ? window : 0);
    if (!family.local_rope) continue;
    config->layer_rope.push_back(layer ? LayerRope::kLocal : LayerRope::kMain);
  }
  if (!family.names.positions.empty()) {
    config->layer_rope.assign(static_cast<size_t>(config->layers), LayerRope::kNone);
  }
  if (family.no_rope_layers) config->layer_rope = NoRopeLayers(fields, config->layers);
  if (!family.experts.count.empty()) {
    config->experts = ReadExperts(fields, family.experts, config->layers);
  }
  if (family.experts.rule != ExpertRule::kSoftmax) {
    config->mtp_layers =
        static_cast<int32_t>(fields.Int("num_nextn_predict_layers", 0, kMaxModelLayers, 0));
  }
}

}  // namespace penstock
