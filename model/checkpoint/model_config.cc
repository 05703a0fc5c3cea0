#include "model/checkpoint/model_config.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "model/checkpoint/config_limits.h"
#include "model/checkpoint/json_fields.h"
#include "model/checkpoint/model_layers.h"
#include "model/checkpoint/model_variant.h"
#include "model/gguf/model_text.h"

namespace penstock {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr int64_t kMaxHidden = 65536;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxVocab = int64_t{1} << 21;
constexpr int64_t kMaxHeadDim = 256;
constexpr size_t kMaxEosIds = 64;
constexpr double kMaxFactor = 1e4;  // of multipliers and caps

// The nearest bf16.
float RoundedToBf16(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
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
    ReadFactors();
    RETURN_IF_ERROR(fields_.status());
    RETURN_IF_ERROR(ReadRope());
    ReadLayers(fields_, *family_, &config_);
    RETURN_IF_ERROR(fields_.status());
    return config_;
  }

 private:
  void ReadArchitecture() {
    const auto architectures = fields_.Strings("architectures", 16);
    if (architectures.size() == 1) family_ = FindModelFamily(architectures[0]);
    if (family_ == nullptr) {
      std::vector<std::string_view> known;
      std::ranges::transform(ModelFamilies(), std::back_inserter(known),
                             &ModelFamily::architecture);
      fields_.Fail("architectures",
                   fmt::format("a list of one of {}; found [{}]", fmt::join(known, ", "),
                               PrintableNames(architectures)));
      return;
    }
    config_.architecture = architectures[0];
    config_.names = family_->names;
    config_.norm_offset = family_->norm_offset;
    config_.layer_norm = family_->layer_norm;
    config_.qk_norm = family_->qk_norm;
    config_.attention_sinks = family_->sinks;
    const std::string dtype = fields_.Has("dtype") ? "dtype" : "torch_dtype";
    fields_.Choice(dtype, {"bfloat16", "float16", "float32", "auto"}, "auto");
    ReadActivation();
  }

  // Gemma's files have hidden_activation; beside it hidden_act means nothing.
  void ReadActivation() {
    config_.activation = family_->activation;
    if (!family_->names.HasGate()) return ReadPlainActivation();
    if (family_->activation == Activation::kGeluTanh) {
      fields_.Choice("hidden_activation", {"gelu_pytorch_tanh"}, "gelu_pytorch_tanh");
    } else {
      fields_.Choice("hidden_act", {"silu", "swish"}, "silu");
    }
  }

  void ReadPlainActivation() {
    const std::vector<std::string> approximations = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"};
    std::vector<std::string> allowed = approximations;
    allowed.insert(allowed.begin(), "gelu");
    const bool tanh = family_->activation == Activation::kGeluTanh;
    const std::string name = fields_.Choice(std::string(family_->fields.activation), allowed,
                                            tanh ? "gelu_pytorch_tanh" : "gelu");
    config_.activation = name == "gelu" ? Activation::kGelu : Activation::kGeluTanh;
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
    const FieldNames& names = family_->fields;
    const AbsentFields& absent = family_->absent;
    c.layers = Int32(names.layers, 1, kMaxModelLayers);
    c.hidden = Int32(names.hidden, 1, kMaxHidden);
    c.intermediate = Int32(names.intermediate, 1, kMaxIntermediate,
                           Unless0(int64_t{absent.mlp_factor} * c.hidden));
    c.heads = Int32(names.heads, 1, kMaxHeads);
    const auto kv_default =
        family_->kv_heads_may_be_absent ? std::optional<int64_t>(c.heads) : std::nullopt;
    c.kv_heads = Int32("num_key_value_heads", 1, kMaxHeads, kv_default);
    c.vocab = Int32("vocab_size", 1, kMaxVocab);
    c.max_position = Int32(names.max_position, 1, kMaxPosition, Unless0(absent.max_position));
    c.norm_epsilon = static_cast<float>(
        fields_.Float(std::string(names.epsilon), 1e-12, 0.1, absent.rms_norm_eps));
    c.tied_embeddings = fields_.Bool("tie_word_embeddings", absent.tie_word_embeddings);
    if (!fields_.status().ok()) return;
    ReadVariant(fields_, *family_, &config_);
    if (c.heads % c.kv_heads != 0) {
      fields_.Fail("num_key_value_heads",
                   fmt::format("a divisor of num_attention_heads ({})", c.heads));
    }
    ReadHeadDim();
  }

  void ReadHeadDim() {
    ModelConfig& c = config_;
    if (family_->latents) return ReadLatents(fields_, &c);
    if (family_->head_dim_required || fields_.Has("head_dim")) {
      c.head_dim = Int32("head_dim", 8, kMaxHeadDim);
      if (c.head_dim % 8 != 0) fields_.Fail("head_dim", "a multiple of 8");
      return;
    }
    if (c.hidden % c.heads != 0 || c.hidden / c.heads % 8 != 0 ||
        c.hidden / c.heads > kMaxHeadDim) {
      fields_.Fail(
          std::string(family_->fields.hidden),
          fmt::format("the number of heads ({}) times a multiple of 8 up to {}, or head_dim "
                      "says what",
                      c.heads, kMaxHeadDim));
      return;
    }
    c.head_dim = c.hidden / c.heads;
  }

  void ReadBiases() {
    const BiasRule rule = family_->attention_bias;
    const bool by_field = rule == BiasRule::kByField || rule == BiasRule::kQkvByField;
    if (by_field) config_.qkv_bias = fields_.Bool("attention_bias", false);
    if (rule == BiasRule::kByField) config_.output_bias = config_.qkv_bias;
    if (rule == BiasRule::kQkv) config_.qkv_bias = fields_.Bool("qkv_bias", true);
    if (rule == BiasRule::kAttention) ReadAttentionBias();
    if (rule == BiasRule::kAll) ReadAllBiases();
    if (family_->mlp_bias_field) config_.mlp_bias = fields_.Bool("mlp_bias", false);
  }

  void ReadAttentionBias() {
    if (!fields_.Bool("attention_bias", true)) fields_.Fail("attention_bias", "true");
    config_.qkv_bias = config_.output_bias = true;
  }

  void ReadAllBiases() {
    const std::string field(family_->fields.bias);
    config_.mlp_bias = field.empty() || fields_.Bool(field, family_->absent.bias);
    config_.qkv_bias = field.empty() ? fields_.Bool("attention_bias", true) : config_.mlp_bias;
    config_.output_bias = config_.qkv_bias;
  }

  void ReadFactors() {
    ModelConfig& c = config_;
    if (family_->query_scalar) {
      c.attention_scale =
          static_cast<float>(1 / std::sqrt(fields_.Float("query_pre_attn_scalar", 1, kMaxHidden)));
    }
    if (family_->soft_caps == SoftCaps::kUsed) {
      c.attention_cap = Float("attn_logit_softcapping");
      c.logit_cap = Float("final_logit_softcapping");
    }
    if (family_->soft_caps == SoftCaps::kRefused) {
      for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
        if (fields_.Has(key)) fields_.Fail(key, "absent");
      }
    }
    if (family_->root_embedding) c.embedding_multiplier = RoundedToBf16(std::sqrt(c.hidden));
    if (family_->multipliers) {
      c.embedding_multiplier = Float("embedding_multiplier");
      c.residual_multiplier = Float("residual_multiplier");
      c.attention_scale = Float("attention_multiplier");
      c.logit_divisor = Float("logits_scaling");
    }
  }

  // RoPE is in `rope_scaling` with a separate `rope_theta`, or completely in `rope_parameters`. If
  // both are present, they must agree.
  absl::Status ReadRope() {
    RopeConfig plain;
    plain.interleaved = family_->interleaved;
    plain.theta = static_cast<float>(fields_.Float(std::string(family_->fields.rope_theta), 1,
                                                   kMaxTheta, family_->absent.rope_theta));
    const RopeContext context{.max_position = config_.max_position,
                              .original_max_position = fields_.Int(
                                  "original_max_position_embeddings", 2, kMaxPosition, 0),
                              .head_dim = RopeHeadDim(),
                              .partial = family_->partial_rotary};
    const double part = fields_.Float(std::string(family_->fields.partial_rotary), 0, 1,
                                      family_->absent.partial_rotary_factor);
    RETURN_IF_ERROR(SetRotaryDims(part, context, "config.json: ", &plain));
    std::optional<RopeConfig> rope;
    for (const std::string key : {"rope_parameters", "rope_scaling"}) {
      const nlohmann::json* dict = fields_.Object(key);
      if (dict == nullptr || dict->empty()) continue;
      ASSIGN_OR_RETURN(const RopeConfig read,
                       ParseRope(*dict, fmt::format("config.json: {}.", key), context, plain));
      if (rope.has_value() && !(*rope == read)) fields_.Fail(key, "the same as rope_parameters");
      rope = read;
    }
    // Without these fields transformers takes a scaling that no file says.
    if (family_->rope_required && !rope.has_value()) fields_.Fail("rope_scaling", "an object");
    config_.rope = rope.value_or(plain);
    FinishRope();
    if (family_->latents) SetLatentRope(fields_, &config_);
    if (!family_->local_rope) return absl::OkStatus();
    config_.local_rope.theta =
        static_cast<float>(fields_.Float("rope_local_base_freq", 1, kMaxTheta, 10000));
    // Embedding models of this architecture.
    if (fields_.Bool("use_bidirectional_attention", false)) {
      fields_.Fail("use_bidirectional_attention", "false");
    }
    return absl::OkStatus();
  }

  int32_t RopeHeadDim() const {
    return config_.HasLatents() ? config_.latent.rope_dims : config_.head_dim;
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

  float Float(const std::string& key) {
    return static_cast<float>(fields_.Float(key, 1e-6, kMaxFactor));
  }

  int32_t Int32(std::string_view key, int64_t min, int64_t max,
                std::optional<int64_t> absent = std::nullopt) {
    return static_cast<int32_t>(fields_.Int(std::string(key), min, max, absent));
  }

  static std::optional<int64_t> Unless0(int64_t value) {
    return value == 0 ? std::nullopt : std::optional<int64_t>(value);
  }

  JsonFields fields_;
  const ModelFamily* family_ = nullptr;
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
