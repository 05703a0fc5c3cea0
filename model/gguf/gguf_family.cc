#include "model/gguf/gguf_family.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace penstock {
namespace {

constexpr int64_t kMaxHeadSize = 65536;

// Mixtral, whose experts have the size of feed_forward_length.
void WriteMixtral(GgufDraft& draft) {
  const int64_t size = draft.EqualPositives("feed_forward_length");
  const std::string key = draft.Key("expert_feed_forward_length");
  if (draft.fields.Int(key, 0, GgufDraft::kMaxNumber, size) != size) {
    draft.fields.Fail(key, fmt::format("absent, or feed_forward_length ({})", size));
  }
  draft.json["architectures"] = {"MixtralForCausalLM"};
  draft.json["num_local_experts"] = draft.Positive("expert_count");
  draft.json["num_experts_per_tok"] = draft.Positive("expert_used_count");
}

// Which matrices of an MLP have a bias follows from the tensors. The loader finds out if layers
// differ.
void WriteMlpBias(GgufDraft& draft) {
  draft.json["mlp_bias"] = draft.file.FindTensor("blk.0.ffn_gate.bias") != nullptr;
}

void WriteLlama(GgufDraft& draft) {
  RefuseWindow(draft);
  const int64_t experts = draft.fields.Int(draft.Key("expert_count"), 0, GgufDraft::kMaxNumber, 0);
  if (experts > 0) return WriteMixtral(draft);
  for (const char* name : {"expert_used_count", "expert_feed_forward_length"}) {
    draft.fields.Int(draft.Key(name), 0, 0, 0);
  }
  WriteMlpBias(draft);
}

void WriteQwen2(GgufDraft& draft) {
  RefuseWindow(draft);
  draft.json.erase("attention_bias");  // queries, keys and values always have it
}

// Files do not say that all layers have experts, whose weights add up to 1: so it is in all
// models of the architecture.
void WriteQwen3Moe(GgufDraft& draft) {
  RefuseWindow(draft);
  draft.json["num_experts"] = draft.Positive("expert_count");
  draft.json["num_experts_per_tok"] = draft.Positive("expert_used_count");
  draft.json["moe_intermediate_size"] = draft.Positive("expert_feed_forward_length");
  draft.json["norm_topk_prob"] = true;
}

// As Qwen3-MoE, with an expert that all tokens use, and without the sum.
void WriteQwen2Moe(GgufDraft& draft) {
  WriteQwen2(draft);
  draft.json["num_experts"] = draft.Positive("expert_count");
  draft.json["num_experts_per_tok"] = draft.Positive("expert_used_count");
  draft.json["moe_intermediate_size"] = draft.Positive("expert_feed_forward_length");
  draft.json["shared_expert_intermediate_size"] =
      draft.Positive("expert_shared_feed_forward_length");
  draft.json["norm_topk_prob"] = false;
}

// Files have the multipliers under other names. rope.scaling.finetuned is false in models without
// rotation.
void WriteGranite(GgufDraft& draft) {
  RefuseWindow(draft);
  WriteMlpBias(draft);
  const std::pair<const char*, const char*> kMultipliers[] = {
      {"attention.scale", "attention_multiplier"},
      {"embedding_scale", "embedding_multiplier"},
      {"residual_scale", "residual_multiplier"},
      {"logit_scale", "logits_scaling"}};
  for (const auto& [name, field] : kMultipliers) {
    draft.json[field] = draft.fields.Float(draft.Key(name), 1e-6, 1e4);
  }
  const std::string rotates = draft.Key("rope.scaling.finetuned");
  if (!draft.fields.Bool(rotates, true)) draft.fields.Fail(rotates, "true");
}

// Files do not say which layers have the window, where a gate is clamped and that YaRN's ramp is
// not truncated: these are as in all models of the architecture.
void WriteGptOss(GgufDraft& draft) {
  draft.json["sliding_window"] = draft.Positive("attention.sliding_window");
  draft.json["num_local_experts"] = draft.Positive("expert_count");
  draft.json["num_experts_per_tok"] = draft.Positive("expert_used_count");
  draft.json["intermediate_size"] = draft.Positive("expert_feed_forward_length");
  const auto scaling = draft.json.find("rope_scaling");
  if (scaling == draft.json.end() || (*scaling)["rope_type"] != "yarn") return;
  (*scaling)["truncate"] = false;
}

constexpr std::string_view kDeepseekKeys[] = {
    "attention.key_length_mla",   "attention.kv_lora_rank",   "attention.q_lora_rank",
    "attention.value_length_mla", "expert_gating_func",       "expert_group_count",
    "expert_group_used_count",    "expert_shared_count",      "expert_weights_norm",
    "expert_weights_scale",       "leading_dense_block_count"};
constexpr std::string_view kGemma2Keys[] = {"attention.sliding_window_pattern",
                                            "attn_logit_softcapping", "final_logit_softcapping"};
constexpr std::string_view kGemma3Keys[] = {"attention.sliding_window_pattern",
                                            "rope.freq_base_swa"};

constexpr std::string_view kGlm4MoeKeys[] = {"expert_gating_func",        "expert_group_count",
                                             "expert_group_used_count",   "expert_shared_count",
                                             "expert_weights_norm",       "expert_weights_scale",
                                             "leading_dense_block_count", "nextn_predict_layers"};
constexpr std::string_view kGraniteKeys[] = {"attention.scale", "embedding_scale", "logit_scale",
                                             "residual_scale"};
constexpr std::string_view kLayerNormKeys[] = {"attention.layer_norm_epsilon"};
constexpr std::string_view kOlmo2Keys[] = {"attention.sliding_window_pattern"};
constexpr std::string_view kQwen2MoeKeys[] = {"expert_shared_feed_forward_length"};

constexpr GgufRename kFalconRenames[] = {{"intermediate_size", "ffn_hidden_size"},
                                         {"num_key_value_heads", "num_kv_heads"},
                                         {"rms_norm_eps", "layer_norm_epsilon"},
                                         {"hidden_act", "activation"}};
constexpr GgufRename kGpt2Renames[] = {
    {"num_hidden_layers", "n_layer"},           {"hidden_size", "n_embd"},
    {"intermediate_size", "n_inner"},           {"num_attention_heads", "n_head"},
    {"max_position_embeddings", "n_positions"}, {"rms_norm_eps", "layer_norm_epsilon"},
    {"hidden_act", "activation_function"}};
constexpr GgufRename kGptNeoxRenames[] = {{"rms_norm_eps", "layer_norm_eps"},
                                          {"rope_theta", "rotary_emb_base"},
                                          {"partial_rotary_factor", "rotary_pct"}};
constexpr GgufRename kStarcoder2Renames[] = {{"rms_norm_eps", "norm_epsilon"}};

constexpr std::string_view kGlmEnds[] = {"<|user|>", "<|observation|>"};
constexpr std::string_view kPhi3Ends[] = {"<|end|>"};

constexpr GgufFamily kFamilies[] = {
    {.architecture = "chatglm",
     .hugging_face = "GlmForCausalLM",
     .ends = kGlmEnds,
     .read_heads = ReadPartlyRotatedHeads,
     .write = RefuseWindow},
    {.architecture = "deepseek2",
     .hugging_face = "DeepseekV2ForCausalLM",
     .keys = kDeepseekKeys,
     .experts = true,
     .read_heads = ReadLatentHeads,
     .write = WriteDeepseek},
    {.architecture = "falcon",
     .hugging_face = "FalconForCausalLM",
     .keys = kLayerNormKeys,
     .layer_norm = true,
     .renames = kFalconRenames,
     .read_heads = ReadEqualHeads,
     .write = WriteFalcon},
    {.architecture = "gemma2",
     .hugging_face = "Gemma2ForCausalLM",
     .keys = kGemma2Keys,
     .read_heads = ReadEqualHeads,
     .write = WriteGemma2},
    {.architecture = "gemma3",
     .hugging_face = "Gemma3ForCausalLM",
     .keys = kGemma3Keys,
     .read_heads = ReadEqualHeads,
     .write = WriteGemma3},
    {.architecture = "glm4",
     .hugging_face = "Glm4ForCausalLM",
     .ends = kGlmEnds,
     .read_heads = ReadPartlyRotatedHeads,
     .write = RefuseWindow},
    {.architecture = "glm4moe",
     .hugging_face = "Glm4MoeForCausalLM",
     .keys = kGlm4MoeKeys,
     .experts = true,
     .post_attention_is_mlp_norm = true,
     .ends = kGlmEnds,
     .read_heads = ReadPartlyRotatedHeads,
     .write = WriteGlm4Moe},
    {.architecture = "gpt-oss",
     .hugging_face = "GptOssForCausalLM",
     .experts = true,
     .post_attention_is_mlp_norm = true,
     .read_heads = ReadEqualHeads,
     .write = WriteGptOss},
    {.architecture = "gpt2",
     .hugging_face = "GPT2LMHeadModel",
     .keys = kLayerNormKeys,
     .layer_norm = true,
     .renames = kGpt2Renames,
     .read_heads = ReadEqualHeads,
     .write = WriteGpt2},
    {.architecture = "gptneox",
     .hugging_face = "GPTNeoXForCausalLM",
     .keys = kLayerNormKeys,
     .layer_norm = true,
     .parallel_field = true,
     .renames = kGptNeoxRenames,
     .read_heads = ReadPartlyRotatedHeads,
     .write = WriteGptNeox},
    {.architecture = "granite",
     .hugging_face = "GraniteForCausalLM",
     .keys = kGraniteKeys,
     .read_heads = ReadEqualHeads,
     .write = WriteGranite},
    {.architecture = "llama",
     .hugging_face = "LlamaForCausalLM",
     .experts = true,
     .read_heads = ReadEqualHeads,
     .write = WriteLlama},
    {.architecture = "olmo2",
     .hugging_face = "Olmo2ForCausalLM",
     .keys = kOlmo2Keys,
     .read_heads = ReadEqualHeads,
     .write = RefuseWindow},
    {.architecture = "phi3",
     .hugging_face = "Phi3ForCausalLM",
     .ends = kPhi3Ends,
     .read_heads = ReadPartlyRotatedHeads,
     .write = WritePhi3},
    {.architecture = "qwen2",
     .hugging_face = "Qwen2ForCausalLM",
     .read_heads = ReadEqualHeads,
     .write = WriteQwen2},
    {.architecture = "qwen2moe",
     .hugging_face = "Qwen2MoeForCausalLM",
     .keys = kQwen2MoeKeys,
     .experts = true,
     .read_heads = ReadEqualHeads,
     .write = WriteQwen2Moe},
    {.architecture = "qwen3",
     .hugging_face = "Qwen3ForCausalLM",
     .read_heads = ReadEqualHeads,
     .write = RefuseWindow},
    {.architecture = "qwen3moe",
     .hugging_face = "Qwen3MoeForCausalLM",
     .experts = true,
     .read_heads = ReadEqualHeads,
     .write = WriteQwen3Moe},
    {.architecture = "starcoder2",
     .hugging_face = "Starcoder2ForCausalLM",
     .keys = kLayerNormKeys,
     .layer_norm = true,
     .renames = kStarcoder2Renames,
     .read_heads = ReadEqualHeads,
     .write = WriteStarcoder2},
};

// The size of a head, of keys and of values.
int64_t ReadHeadSize(GgufDraft& draft) {
  const int64_t hidden = draft.Positive("embedding_length");
  const int64_t heads = draft.EqualPositives("attention.head_count");
  const int64_t size = draft.fields.Int(draft.Key("attention.key_length"), 1, kMaxHeadSize,
                                        std::max<int64_t>(hidden / heads, 1));
  const std::string key = draft.Key("attention.value_length");
  if (draft.fields.Int(key, 0, GgufDraft::kMaxNumber, size) != size) {
    draft.fields.Fail(key, fmt::format("the size of a head ({})", size));
  }
  draft.json["head_dim"] = size;
  return size;
}

}  // namespace

std::string GgufDraft::Key(std::string_view name) const {
  return fmt::format("{}.{}", architecture, name);
}

int64_t GgufDraft::Positive(std::string_view name, std::optional<int64_t> absent) {
  return fields.Int(Key(name), 1, kMaxNumber, absent);
}

int64_t GgufDraft::EqualPositives(std::string_view name, std::optional<int64_t> absent) {
  return fields.EqualInts(Key(name), 1, kMaxNumber, absent);
}

const GgufFamily* FindGgufFamily(std::string_view architecture) {
  const auto* const known = std::ranges::find(kFamilies, architecture, &GgufFamily::architecture);
  return known == std::end(kFamilies) ? nullptr : known;
}

absl::StatusOr<const GgufFamily*> FindGgufFamily(const GgufFile& file) {
  constexpr char kKey[] = "general.architecture";
  GgufFields fields(file);
  const GgufFamily* known = FindGgufFamily(fields.String(kKey, 64));
  if (known == nullptr) {
    std::vector<std::string_view> names;
    std::ranges::transform(kFamilies, std::back_inserter(names), &GgufFamily::architecture);
    fields.Fail(kKey, fmt::format("one of {}", fmt::join(names, ", ")));
  }
  RETURN_IF_ERROR(fields.status());
  return known;
}

int64_t ReadEqualHeads(GgufDraft& draft) {
  const int64_t size = ReadHeadSize(draft);
  const std::string key = draft.Key("rope.dimension_count");
  if (draft.fields.Int(key, 0, GgufDraft::kMaxNumber, size) != size) {
    draft.fields.Fail(key, fmt::format("the size of a head ({})", size));
  }
  return size;
}

int64_t ReadPartlyRotatedHeads(GgufDraft& draft) {
  const int64_t size = ReadHeadSize(draft);
  const std::string key = draft.Key("rope.dimension_count");
  const int64_t rotated = draft.fields.Int(key, 2, size);
  const double part = static_cast<double>(rotated) / static_cast<double>(size);
  if (rotated % 2 != 0 || static_cast<int64_t>(static_cast<double>(size) * part) != rotated) {
    draft.fields.Fail(key, fmt::format("an even number up to the size of a head ({})", size));
  }
  draft.json["partial_rotary_factor"] = part;
  return rotated;
}

void RefuseWindow(GgufDraft& draft) {
  const std::string key = draft.Key("attention.sliding_window");
  const int64_t window = draft.fields.Int(key, 0, GgufDraft::kMaxNumber, 0);
  if (window == 0 || window >= draft.json["max_position_embeddings"].get<int64_t>()) return;
  draft.fields.Fail(key, "absent, or at least the context's length");
}

}  // namespace penstock
