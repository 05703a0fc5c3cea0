#include "model/gguf/gguf_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/printable_name.h"
#include "model/gguf/gguf_fields.h"
#include "model/gguf/gguf_names.h"
#include "model/gguf/gguf_rope.h"

namespace penstock {
namespace {

constexpr int64_t kMaxNumber = int64_t{1} << 31;  // config.json's reader has the exact limits
constexpr int64_t kMaxHeadSize = 65536;
constexpr double kMaxThetaBase = 1e12;
constexpr int64_t kQuantisationVersion = 2;
constexpr int64_t kMaxTokenNumber = int64_t{1} << 24;
constexpr int64_t kControlToken = 3;

struct ArchitectureName {
  std::string_view gguf;
  std::string_view hugging_face;
};
constexpr std::string_view kGptOss = "gpt-oss", kQwen3Moe = "qwen3moe";
constexpr std::array<ArchitectureName, 5> kGgufArchitectures = {
    {{kGptOss, "GptOssForCausalLM"},
     {"llama", "LlamaForCausalLM"},
     {"qwen2", "Qwen2ForCausalLM"},
     {"qwen3", "Qwen3ForCausalLM"},
     {kQwen3Moe, "Qwen3MoeForCausalLM"}}};

// Keys behind "ARCHITECTURE." that are read below, or that say nothing new.
constexpr std::array<std::string_view, 30> kUnderstoodKeys = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "expert_feed_forward_length",
    "expert_used_count",
    "feed_forward_length",
    "pooling_type",  // gguf_embedding.h
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "tensor_data_layout",
    "use_parallel_residual",
    "vocab_size"};

// Spellings of control tokens that end an answer.
constexpr std::array<std::string_view, 7> kEndSpellings = {
    "<|return|>",      "<|call|>",   "<|eot_id|>",   "<|eom_id|>",
    "<|end_of_text|>", "<|im_end|>", "<|endoftext|>"};

class ConfigWriter {
 public:
  ConfigWriter(const GgufFile& file, const ArchitectureName& architecture)
      : file_(file), fields_(file), architecture_(architecture) {}

  absl::StatusOr<std::string> Write() {
    CheckKeys();
    WriteShape();
    WriteBiases();
    WriteTokens();
    RETURN_IF_ERROR(fields_.status());
    RETURN_IF_ERROR(WriteEmbeddings());
    RETURN_IF_ERROR(WriteRope());
    ASSIGN_OR_RETURN(const std::vector<int64_t> ends, GgufEndTokens(file_));
    if (!ends.empty()) json_["eos_token_id"] = ends;
    return json_.dump(2) + "\n";
  }

  absl::StatusOr<int32_t> ReadHeadDim() {
    const int64_t head_dim = HeadDim();
    RETURN_IF_ERROR(fields_.status());
    return static_cast<int32_t>(head_dim);
  }

 private:
  std::string Key(std::string_view name) const {
    return fmt::format("{}.{}", architecture_.gguf, name);
  }

  bool IsGptOss() const { return architecture_.gguf == kGptOss; }
  bool IsQwen3Moe() const { return architecture_.gguf == kQwen3Moe; }

  void CheckKeys() {
    const std::string prefix = Key("");
    for (const auto& [key, value] : file_.metadata) {
      if (!key.starts_with(prefix)) continue;
      if (std::ranges::find(kUnderstoodKeys, key.substr(prefix.size())) == kUnderstoodKeys.end()) {
        fields_.Refuse(key,
                       fmt::format("is none that {} models are known to have", architecture_.gguf));
      }
    }
    if (fields_.String("general.type", 64, "model") != "model") {
      fields_.Fail("general.type", "model");
    }
    fields_.Int("general.quantization_version", kQuantisationVersion, kQuantisationVersion,
                kQuantisationVersion);
    const int64_t experts_max = HasExpertsTogether(architecture_.gguf) ? kMaxNumber : 0;
    for (const char* key : {"expert_count", "expert_used_count", "expert_feed_forward_length"}) {
      fields_.Int(Key(key), 0, experts_max, 0);
    }
    if (fields_.Bool(Key("use_parallel_residual"), false)) {
      fields_.Fail(Key("use_parallel_residual"), "false");
    }
  }

  // The keys of queries, keys and rotation must agree on it.
  int64_t HeadDim() {
    const int64_t hidden = fields_.Int(Key("embedding_length"), 1, kMaxNumber);
    const int64_t heads = fields_.EqualInts(Key("attention.head_count"), 1, kMaxNumber);
    const int64_t head_dim = fields_.Int(Key("attention.key_length"), 1, kMaxHeadSize,
                                         std::max<int64_t>(hidden / heads, 1));
    for (const char* key : {"attention.value_length", "rope.dimension_count"}) {
      if (fields_.Int(Key(key), 0, kMaxNumber, head_dim) != head_dim) {
        fields_.Fail(Key(key), fmt::format("the size of a head ({})", head_dim));
      }
    }
    return head_dim;
  }

  void WriteShape() {
    json_["architectures"] = {architecture_.hugging_face};
    json_["hidden_act"] = "silu";
    json_["num_hidden_layers"] = fields_.Int(Key("block_count"), 1, kMaxNumber);
    json_["hidden_size"] = fields_.Int(Key("embedding_length"), 1, kMaxNumber);
    json_["intermediate_size"] = fields_.EqualInts(Key("feed_forward_length"), 1, kMaxNumber);
    const int64_t heads = fields_.EqualInts(Key("attention.head_count"), 1, kMaxNumber);
    json_["num_attention_heads"] = heads;
    json_["num_key_value_heads"] =
        fields_.EqualInts(Key("attention.head_count_kv"), 1, kMaxNumber, heads);
    json_["head_dim"] = head_dim_ = HeadDim();
    json_["rms_norm_eps"] = fields_.Float(Key("attention.layer_norm_rms_epsilon"), 1e-12, 0.1);
    const int64_t positions = fields_.Int(Key("context_length"), 1, kMaxNumber);
    json_["max_position_embeddings"] = positions;
    if (IsGptOss()) return WriteGptOss();
    if (IsQwen3Moe()) WriteQwen3Moe();
    // Files of these architectures do not say which layers a window is for.
    const int64_t window = fields_.Int(Key("attention.sliding_window"), 0, kMaxNumber, 0);
    if (window != 0 && window < positions) {
      fields_.Fail(Key("attention.sliding_window"), "absent, or at least the context's length");
    }
  }

  // Files do not say which layers have the window, where a gate is clamped and that YaRN's ramp is
  // not truncated: these are as in all models of the architecture.
  void WriteGptOss() {
    json_["sliding_window"] = fields_.Int(Key("attention.sliding_window"), 1, kMaxNumber);
    json_["num_local_experts"] = fields_.Int(Key("expert_count"), 1, kMaxNumber);
    json_["num_experts_per_tok"] = fields_.Int(Key("expert_used_count"), 1, kMaxNumber);
    json_["intermediate_size"] = fields_.Int(Key("expert_feed_forward_length"), 1, kMaxNumber);
  }

  // Files do not say that all layers have experts, whose weights add up to 1: so it is in all
  // models of the architecture.
  void WriteQwen3Moe() {
    json_["num_experts"] = fields_.Int(Key("expert_count"), 1, kMaxNumber);
    json_["num_experts_per_tok"] = fields_.Int(Key("expert_used_count"), 1, kMaxNumber);
    json_["moe_intermediate_size"] = fields_.Int(Key("expert_feed_forward_length"), 1, kMaxNumber);
    json_["norm_topk_prob"] = true;
  }

  // Which matrices have a bias follows from the tensors. The loader finds out if layers differ.
  void WriteBiases() {
    const bool attention = file_.FindTensor("blk.0.attn_q.bias") != nullptr;
    const bool mlp = file_.FindTensor("blk.0.ffn_gate.bias") != nullptr;
    if (architecture_.gguf != "qwen2") json_["attention_bias"] = attention;
    if (architecture_.gguf == "llama") json_["mlp_bias"] = mlp;
  }

  absl::Status WriteEmbeddings() {
    const GgufTensor* table = file_.FindTensor("token_embd.weight");
    if (table == nullptr) {
      return InvalidArgument("{}: tensor token_embd.weight is missing", file_.name);
    }
    if (table->shape.size() != 2) {
      return InvalidArgument("{}: tensor token_embd.weight has shape [{}], allowed are two extents",
                             file_.name, fmt::join(table->shape, ", "));
    }
    json_["vocab_size"] = table->shape[0];
    json_["tie_word_embeddings"] = file_.FindTensor("output.weight") == nullptr;
    return absl::OkStatus();
  }

  absl::Status WriteRope() {
    const double theta = fields_.Float(Key("rope.freq_base"), 1, kMaxThetaBase, 10000);
    RETURN_IF_ERROR(fields_.status());
    json_["rope_theta"] = theta;
    ASSIGN_OR_RETURN(nlohmann::json scaling, GgufRopeScaling(file_, std::string(architecture_.gguf),
                                                             theta, head_dim_, fields_));
    if (scaling.is_null()) return absl::OkStatus();
    if (IsGptOss() && scaling["rope_type"] == "yarn") scaling["truncate"] = false;
    json_["rope_scaling"] = std::move(scaling);
    return absl::OkStatus();
  }

  void WriteTokens() {
    constexpr char kBos[] = "tokenizer.ggml.bos_token_id";
    if (fields_.Has(kBos)) json_["bos_token_id"] = fields_.Int(kBos, 0, kMaxTokenNumber);
  }

  const GgufFile& file_;
  GgufFields fields_;
  const ArchitectureName& architecture_;
  nlohmann::json json_ = nlohmann::json::object();
  int64_t head_dim_ = 1;
};

absl::StatusOr<const ArchitectureName*> FindArchitecture(const GgufFile& file) {
  constexpr char kKey[] = "general.architecture";
  GgufFields fields(file);
  const std::string name = fields.String(kKey, 64);
  const auto known = std::ranges::find(kGgufArchitectures, name, &ArchitectureName::gguf);
  if (known == kGgufArchitectures.end()) {
    fields.Fail(kKey, "one of gpt-oss, llama, qwen2, qwen3, qwen3moe");
  }
  RETURN_IF_ERROR(fields.status());
  return &*known;
}

}  // namespace

absl::StatusOr<std::string> GgufConfigJson(const GgufFile& file) {
  ASSIGN_OR_RETURN(const ArchitectureName* architecture, FindArchitecture(file));
  return ConfigWriter(file, *architecture).Write();
}

absl::StatusOr<int32_t> GgufHeadDim(const GgufFile& file) {
  ASSIGN_OR_RETURN(const ArchitectureName* architecture, FindArchitecture(file));
  return ConfigWriter(file, *architecture).ReadHeadDim();
}

absl::StatusOr<std::string> GgufArchitecture(const GgufFile& file) {
  ASSIGN_OR_RETURN(const ArchitectureName* architecture, FindArchitecture(file));
  return std::string(architecture->gguf);
}

absl::StatusOr<std::vector<int64_t>> GgufEndTokens(const GgufFile& file) {
  GgufFields fields(file);
  std::set<int64_t> ids;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    if (fields.Has(key)) ids.insert(fields.Int(key, 0, kMaxTokenNumber));
  }
  RETURN_IF_ERROR(fields.status());
  const GgufValue* tokens = file.Find("tokenizer.ggml.tokens");
  const GgufValue* types = file.Find("tokenizer.ggml.token_type");
  if (tokens != nullptr && types != nullptr && types->is_array) {
    const size_t count = std::min(tokens->strings.size(), types->count);
    for (size_t i = 0; i < count; i++) {
      if (types->Int(i) != kControlToken) continue;
      if (std::ranges::find(kEndSpellings, tokens->strings[i]) == kEndSpellings.end()) continue;
      ids.insert(static_cast<int64_t>(i));
    }
  }
  return std::vector<int64_t>(ids.begin(), ids.end());
}

}  // namespace penstock
