#include "model/gguf/gguf_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "model/gguf/gguf_family.h"
#include "model/gguf/gguf_rope.h"

namespace penstock {
namespace {

constexpr int64_t kQuantisationVersion = 2;
constexpr int64_t kMaxTokenNumber = int64_t{1} << 24;
constexpr int64_t kControlToken = 3;

// Keys behind "ARCHITECTURE." that are read below or by the families, or that say nothing new.
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
constexpr std::array<std::string_view, 8> kEndSpellings = {
    "<|return|>",      "<|call|>",   "<|eot_id|>",    "<|eom_id|>",
    "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "<end_of_turn>"};

class ConfigWriter {
 public:
  ConfigWriter(const GgufFile& file, const GgufFamily& family)
      : draft_(file, family.architecture), family_(family) {}

  absl::StatusOr<std::string> Write() {
    CheckKeys();
    WriteShape();
    WriteTokens();
    RETURN_IF_ERROR(fields_.status());
    RETURN_IF_ERROR(WriteEmbeddings());
    RETURN_IF_ERROR(WriteRope());
    family_.write(draft_);
    RETURN_IF_ERROR(fields_.status());
    Rename();
    ASSIGN_OR_RETURN(const std::vector<int64_t> ends, GgufEndTokens(file_));
    if (!ends.empty()) json_["eos_token_id"] = ends;
    return json_.dump(2) + "\n";
  }

 private:
  bool IsUnderstood(std::string_view name) const {
    return std::ranges::find(kUnderstoodKeys, name) != kUnderstoodKeys.end() ||
           std::ranges::find(family_.keys, name) != family_.keys.end();
  }

  void CheckKeys() {
    const std::string prefix = draft_.Key("");
    for (const auto& [key, value] : file_.metadata) {
      if (!key.starts_with(prefix) || IsUnderstood(key.substr(prefix.size()))) continue;
      fields_.Refuse(key,
                     fmt::format("is none that {} models are known to have", family_.architecture));
    }
    if (fields_.String("general.type", 64, "model") != "model") {
      fields_.Fail("general.type", "model");
    }
    fields_.Int("general.quantization_version", kQuantisationVersion, kQuantisationVersion,
                kQuantisationVersion);
    const int64_t experts_max = family_.experts ? GgufDraft::kMaxNumber : 0;
    for (const char* name : {"expert_count", "expert_used_count", "expert_feed_forward_length"}) {
      fields_.Int(draft_.Key(name), 0, experts_max, 0);
    }
    const std::string multiplier = draft_.Key("rope.scaling.yarn_log_multiplier");
    if (family_.architecture != "deepseek2" && fields_.Float(multiplier, -1e6, 1e6, 0) != 0) {
      fields_.Fail(multiplier, "0");
    }
    const std::string parallel = draft_.Key("use_parallel_residual");
    if (!family_.parallel_field && fields_.Bool(parallel, false)) fields_.Fail(parallel, "false");
  }

  void Rename() {
    for (const auto& [usual, own] : family_.renames) {
      const auto field = json_.find(usual);
      if (field == json_.end()) continue;
      nlohmann::json value = std::move(*field);
      json_.erase(field);
      json_[own] = std::move(value);
    }
  }

  void WriteShape() {
    json_["architectures"] = {family_.hugging_face};
    json_["hidden_act"] = "silu";
    json_["num_hidden_layers"] = draft_.Positive("block_count");
    json_["hidden_size"] = draft_.Positive("embedding_length");
    json_["intermediate_size"] = draft_.EqualPositives("feed_forward_length");
    const int64_t heads = draft_.EqualPositives("attention.head_count");
    json_["num_attention_heads"] = heads;
    json_["num_key_value_heads"] = draft_.EqualPositives("attention.head_count_kv", heads);
    rotated_ = family_.read_heads(draft_);
    const char* epsilon =
        family_.layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
    json_["rms_norm_eps"] = fields_.Float(draft_.Key(epsilon), 1e-12, 0.1);
    json_["max_position_embeddings"] = draft_.Positive("context_length");
    // Which matrices have a bias follows from the tensors. The loader finds out if layers differ.
    json_["attention_bias"] = file_.FindTensor("blk.0.attn_q.bias") != nullptr ||
                              file_.FindTensor("blk.0.attn_qkv.bias") != nullptr;
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
    const double theta =
        fields_.Float(draft_.Key("rope.freq_base"), 1, GgufDraft::kMaxTheta, 10000);
    RETURN_IF_ERROR(fields_.status());
    json_["rope_theta"] = theta;
    ASSIGN_OR_RETURN(
        nlohmann::json scaling,
        GgufRopeScaling(file_, std::string(family_.architecture), theta, rotated_, fields_));
    if (!scaling.is_null()) json_["rope_scaling"] = std::move(scaling);
    return absl::OkStatus();
  }

  void WriteTokens() {
    constexpr char kBos[] = "tokenizer.ggml.bos_token_id";
    if (fields_.Has(kBos)) json_["bos_token_id"] = fields_.Int(kBos, 0, kMaxTokenNumber);
  }

  GgufDraft draft_;
  const GgufFamily& family_;
  const GgufFile& file_ = draft_.file;
  GgufFields& fields_ = draft_.fields;
  nlohmann::json& json_ = draft_.json;
  int64_t rotated_ = 1;  // dimensions of a head
};

}  // namespace

absl::StatusOr<std::string> GgufConfigJson(const GgufFile& file) {
  ASSIGN_OR_RETURN(const GgufFamily* family, FindGgufFamily(file));
  return ConfigWriter(file, *family).Write();
}

absl::StatusOr<std::string> GgufArchitecture(const GgufFile& file) {
  ASSIGN_OR_RETURN(const GgufFamily* family, FindGgufFamily(file));
  return std::string(family->architecture);
}

bool IsTurnMarker(std::string_view spelling) {
  return spelling == "<start_of_turn>" || spelling == "<end_of_turn>";
}

absl::StatusOr<std::vector<int64_t>> GgufEndTokens(const GgufFile& file) {
  GgufFields fields(file);
  // Some spellings end an answer in some families only: in gpt-oss "<|end|>" ends a part of it.
  const GgufFamily* family = FindGgufFamily(fields.String("general.architecture", 64, ""));
  const auto ends_answers = [&](std::string_view spelling) {
    return std::ranges::find(kEndSpellings, spelling) != kEndSpellings.end() ||
           (family != nullptr && std::ranges::find(family->ends, spelling) != family->ends.end());
  };
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
      if (types->Int(i) != kControlToken && !IsTurnMarker(tokens->strings[i])) continue;
      if (ends_answers(tokens->strings[i])) ids.insert(static_cast<int64_t>(i));
    }
  }
  return std::vector<int64_t>(ids.begin(), ids.end());
}

}  // namespace penstock
