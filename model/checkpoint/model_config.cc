#include "model/checkpoint/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/checkpoint/json_fields.h"
#include "model/gguf/model_text.h"

namespace penstock {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHidden = 65536;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxIntermediate = int64_t{1} << 20;
constexpr int64_t kMaxVocab = int64_t{1} << 21;
constexpr int64_t kMaxPosition = int64_t{1} << 24;
constexpr int64_t kMaxHeadDim = 256;
constexpr size_t kMaxEosIds = 64;
constexpr double kMaxTheta = 1e12;
constexpr double kMaxRopeFactor = 1e4;

const std::vector<std::string> kArchitectures = {"LlamaForCausalLM", "MistralForCausalLM",
                                                 "Qwen2ForCausalLM", "Qwen3ForCausalLM"};

// YaRN's attention scaling (Peng et al., arXiv 2309.00071, section 3.4) for an extension by
// `factor`.
double YarnScale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double YarnAttentionFactor(JsonFields& fields, double factor) {
  if (fields.Has("attention_factor")) return fields.Float("attention_factor", 1e-3, 1e3);
  const double mscale = fields.Float("mscale", 0, 1e3, 0);
  const double mscale_all = fields.Float("mscale_all_dim", 0, 1e3, 0);
  if (mscale == 0 || mscale_all == 0) return YarnScale(factor, 1);
  return YarnScale(factor, mscale) / YarnScale(factor, mscale_all);
}

void ReadYarn(JsonFields& fields, RopeConfig* rope) {
  rope->scaling = RopeScaling::kYarn;
  rope->beta_fast = static_cast<float>(fields.Float("beta_fast", 1e-3, 1e4, 32));
  rope->beta_slow = static_cast<float>(fields.Float("beta_slow", 1e-3, 1e4, 1));
  rope->attention_factor = static_cast<float>(YarnAttentionFactor(fields, rope->factor));
  if (!fields.Bool("truncate", true)) fields.Fail("truncate", "true");
  if (rope->beta_slow >= rope->beta_fast) fields.Fail("beta_slow", "less than beta_fast");
}

void ReadLlama3(JsonFields& fields, RopeConfig* rope) {
  rope->scaling = RopeScaling::kLlama3;
  rope->low_freq_factor = static_cast<float>(fields.Float("low_freq_factor", 1e-3, 1e4));
  rope->high_freq_factor = static_cast<float>(fields.Float("high_freq_factor", 1e-3, 1e4));
  if (rope->low_freq_factor >= rope->high_freq_factor) {
    fields.Fail("low_freq_factor", "less than high_freq_factor");
  }
}

std::string RopeType(JsonFields& fields) {
  const std::string key = fields.Has("rope_type") ? "rope_type" : "type";
  // Newer files write {"rope_theta": ...} alone if there is no scaling.
  if (!fields.Has(key) && fields.Has("factor")) fields.Fail("rope_type", "a string");
  return fields.Choice(key, {"default", "linear", "llama3", "yarn"}, "default");
}

// Parses `dict`, the value of rope_scaling or of rope_parameters.
absl::StatusOr<RopeConfig> ReadRopeDict(const nlohmann::json& dict, const std::string& where,
                                        RopeConfig rope) {
  JsonFields fields(dict, where);
  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    if (fields.Has(layer_type)) fields.Fail(layer_type, "absent: one RoPE for all layers");
  }
  rope.theta = static_cast<float>(fields.Float("rope_theta", 1, kMaxTheta, rope.theta));
  if (fields.Float("partial_rotary_factor", 0, 1, 1) != 1)
    fields.Fail("partial_rotary_factor", "1");
  const std::string type = RopeType(fields);
  if (type != "default") {
    rope.factor = static_cast<float>(fields.Float("factor", 1, kMaxRopeFactor));
    if (type == "linear") rope.scaling = RopeScaling::kLinear;
    if (type == "llama3") ReadLlama3(fields, &rope);
    if (type == "yarn") ReadYarn(fields, &rope);
    const auto original = type == "llama3" ? std::nullopt : std::optional<int64_t>(0);
    rope.original_max_position = static_cast<int32_t>(fields.Int(
        "original_max_position_embeddings", type == "llama3" ? 1 : 0, kMaxPosition, original));
  }
  if (!fields.status().ok()) return fields.status();
  return rope;
}

class ConfigReader {
 public:
  explicit ConfigReader(const nlohmann::json& object) : fields_(object, "config.json: ") {}

  absl::StatusOr<ModelConfig> Read() {
    ReadArchitecture();
    RETURN_IF_ERROR(fields_.status());
    RETURN_IF_ERROR(ReadQuantisation());
    ReadShape();
    ReadBiases();
    RETURN_IF_ERROR(fields_.status());
    RETURN_IF_ERROR(ReadRope());
    ReadSlidingWindow();
    RETURN_IF_ERROR(fields_.status());
    return config_;
  }

 private:
  void ReadArchitecture() {
    const auto architectures = fields_.Strings("architectures", 16);
    if (architectures.size() != 1 || std::ranges::count(kArchitectures, architectures[0]) == 0) {
      fields_.Fail("architectures",
                   fmt::format("a list of one of {}; found [{}]", fmt::join(kArchitectures, ", "),
                               PrintableNames(architectures)));
      return;
    }
    config_.architecture = architectures[0];
    const std::string dtype = fields_.Has("dtype") ? "dtype" : "torch_dtype";
    fields_.Choice(dtype, {"bfloat16", "float16", "float32", "auto"}, "auto");
    fields_.Choice("hidden_act", {"silu", "swish"}, "silu");
  }

  // Older files have the same object as compression_config.
  absl::Status ReadQuantisation() {
    for (const char* key : {"quantization_config", "compression_config"}) {
      const nlohmann::json* object = fields_.Object(key);
      if (object == nullptr) continue;
      ASSIGN_OR_RETURN(config_.quantisation, ParseQuantisationConfig(*object));
      break;
    }
    return fields_.status();
  }

  static std::string PrintableNames(const std::vector<std::string>& names) {
    const std::string all = fmt::format("{}", fmt::join(names, ", "));
    return all.size() <= 80 ? all : all.substr(0, 80) + "...";
  }

  void ReadShape() {
    ModelConfig& c = config_;
    c.layers = Int32("num_hidden_layers", 1, kMaxLayers);
    c.hidden = Int32("hidden_size", 1, kMaxHidden);
    c.intermediate = Int32("intermediate_size", 1, kMaxIntermediate);
    c.heads = Int32("num_attention_heads", 1, kMaxHeads);
    // Only early Llama configs omit the field; other architectures have other defaults.
    const auto kv_default = Is("Llama") ? std::optional<int64_t>(c.heads) : std::nullopt;
    c.kv_heads = Int32("num_key_value_heads", 1, kMaxHeads, kv_default);
    c.vocab = Int32("vocab_size", 1, kMaxVocab);
    c.max_position = Int32("max_position_embeddings", 1, kMaxPosition);
    c.norm_epsilon = static_cast<float>(fields_.Float("rms_norm_eps", 1e-12, 0.1, 1e-6));
    c.tied_embeddings = fields_.Bool("tie_word_embeddings", false);
    if (!fields_.status().ok()) return;
    if (c.heads % c.kv_heads != 0) {
      fields_.Fail("num_key_value_heads",
                   fmt::format("a divisor of num_attention_heads ({})", c.heads));
    }
    ReadHeadDim();
  }

  void ReadHeadDim() {
    ModelConfig& c = config_;
    if (Is("Qwen3") || fields_.Has("head_dim")) {
      c.head_dim = Int32("head_dim", 8, kMaxHeadDim);
      if (c.head_dim % 8 != 0) fields_.Fail("head_dim", "a multiple of 8");
      return;
    }
    if (c.hidden % c.heads != 0 || c.hidden / c.heads % 8 != 0 ||
        c.hidden / c.heads > kMaxHeadDim) {
      fields_.Fail(
          "hidden_size",
          fmt::format("num_attention_heads ({}) times a multiple of 8 up to {}, or head_dim "
                      "says what",
                      c.heads, kMaxHeadDim));
      return;
    }
    c.head_dim = c.hidden / c.heads;
  }

  void ReadBiases() {
    config_.qk_norm = Is("Qwen3");
    if (Is("Qwen2")) config_.qkv_bias = true;
    if (Is("Llama") || Is("Qwen3")) {
      config_.qkv_bias = config_.output_bias = fields_.Bool("attention_bias", false);
    }
    if (Is("Llama")) config_.mlp_bias = fields_.Bool("mlp_bias", false);
  }

  // RoPE is in `rope_scaling` with a separate `rope_theta`, or completely in `rope_parameters`. If
  // both are present, they must agree.
  absl::Status ReadRope() {
    RopeConfig plain;
    plain.theta = static_cast<float>(fields_.Float("rope_theta", 1, kMaxTheta, 10000));
    if (fields_.Float("partial_rotary_factor", 0, 1, 1) != 1) {
      fields_.Fail("partial_rotary_factor", "1");
    }
    std::optional<RopeConfig> rope;
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      const nlohmann::json* dict = fields_.Object(key);
      if (dict == nullptr || dict->empty()) continue;
      ASSIGN_OR_RETURN(const RopeConfig read,
                       ReadRopeDict(*dict, fmt::format("config.json: {}.", key), plain));
      if (rope.has_value() && !(*rope == read)) fields_.Fail(key, "the same as rope_parameters");
      rope = read;
    }
    config_.rope = rope.value_or(plain);
    FinishRope();
    return absl::OkStatus();
  }

  void FinishRope() {
    RopeConfig& rope = config_.rope;
    if (rope.original_max_position == 0) {
      rope.original_max_position = config_.max_position;
    } else if (rope.scaling == RopeScaling::kYarn) {
      // Qwen's instructions add yarn to config.json without changing max_position_embeddings.
      const double stretched = static_cast<double>(rope.factor) * rope.original_max_position;
      config_.max_position = static_cast<int32_t>(
          std::clamp(stretched, static_cast<double>(config_.max_position), double{kMaxPosition}));
    }
  }

  void ReadSlidingWindow() {
    const int32_t window = Window();
    const auto types = fields_.Strings("layer_types", kMaxLayers);
    if (!types.empty()) {
      ReadLayerTypes(types, window);
    } else if (window != 0) {
      // Mistral uses the window in all layers, Qwen in the layers from max_window_layers on.
      const int32_t first = Is("Mistral") ? 0 : Int32("max_window_layers", 0, kMaxPosition, 28);
      for (int32_t layer = 0; layer < config_.layers; layer++) {
        config_.sliding_window.push_back(layer >= first ? window : 0);
      }
    } else {
      config_.sliding_window.assign(static_cast<size_t>(config_.layers), 0);
    }
    // A window that covers all positions is the same as none.
    for (int32_t& layer_window : config_.sliding_window) {
      if (layer_window >= config_.max_position) layer_window = 0;
    }
  }

  int32_t Window() {  // 0: none
    if (Is("Llama")) return 0;
    if (!Is("Mistral") && !fields_.Bool("use_sliding_window", false)) return 0;
    return Int32("sliding_window", 1, kMaxPosition, 0);
  }

  void ReadLayerTypes(const std::vector<std::string>& types, int32_t window) {
    if (static_cast<int32_t>(types.size()) != config_.layers) {
      fields_.Fail("layer_types", fmt::format("one entry per layer ({})", config_.layers));
    }
    for (const std::string& type : types) {
      const bool slides = type == "sliding_attention";
      if (!slides && type != "full_attention") {
        fields_.Fail("layer_types", "full_attention or sliding_attention for each layer");
      }
      if (slides && window == 0) {
        fields_.Fail("layer_types", "full_attention only, as no sliding_window is in use");
      }
      config_.sliding_window.push_back(slides ? window : 0);
    }
  }

  // True for "Llama" if the architecture is LlamaForCausalLM.
  bool Is(std::string_view family) const {
    return config_.architecture == fmt::format("{}ForCausalLM", family);
  }

  int32_t Int32(const std::string& key, int64_t min, int64_t max,
                std::optional<int64_t> absent = std::nullopt) {
    return static_cast<int32_t>(fields_.Int(key, min, max, absent));
  }

  JsonFields fields_;
  ModelConfig config_;
};

// Reads the end-of-sequence tokens; generation_config.json takes precedence over config.json.
absl::Status ReadSpecialTokens(const nlohmann::json& config_json, const nlohmann::json& generation,
                               ModelConfig* config) {
  JsonFields config_fields(config_json, "config.json: ");
  JsonFields generation_fields(generation, "generation_config.json: ");
  const int64_t last = config->vocab - 1;
  auto eos = generation_fields.IntOrList("eos_token_id", 0, last, kMaxEosIds);
  if (eos.empty()) eos = config_fields.IntOrList("eos_token_id", 0, last, kMaxEosIds);
  for (const int64_t id : eos) config->eos_token_ids.push_back(static_cast<uint32_t>(id));
  if (config_fields.Has("bos_token_id")) {
    config->bos_token_id = static_cast<uint32_t>(config_fields.Int("bos_token_id", 0, last));
  }
  RETURN_IF_ERROR(generation_fields.status());
  return config_fields.status();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config,
                                             std::string_view generation_config) {
  ASSIGN_OR_RETURN(const nlohmann::json object,
                   ParseJsonObject(config, "config.json", kMaxFileBytes));
  nlohmann::json generation = nlohmann::json::object();
  if (!generation_config.empty()) {
    ASSIGN_OR_RETURN(generation,
                     ParseJsonObject(generation_config, "generation_config.json", kMaxFileBytes));
  }
  ASSIGN_OR_RETURN(ModelConfig model, ConfigReader(object).Read());
  RETURN_IF_ERROR(ReadSpecialTokens(object, generation, &model));
  return model;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model) {
  ASSIGN_OR_RETURN(const std::string config, ReadModelText(model, "config.json"));
  const auto generation = ReadModelText(model, "generation_config.json");
  if (!generation.ok() && !absl::IsNotFound(generation.status())) return generation.status();
  auto parsed = ParseModelConfig(config, generation.ok() ? *generation : "");
  if (!parsed.ok()) return Annotate(parsed.status(), model);
  return parsed;
}

}  // namespace penstock
