#include <charconv>
#include <string>

#include "model/gguf/gguf_family.h"

namespace penstock {
namespace {

constexpr int64_t kSoftmax = 1, kSigmoid = 2;  // llama.cpp's enum of gating functions
constexpr double kLogMultiplierUnit = 0.1;     // of YaRN's mscale_all_dim, in files of DeepSeek

void Expect(GgufDraft& draft, const char* name, int64_t expected, const char* what) {
  const std::string key = draft.Key(name);
  if (draft.fields.Int(key, 1, GgufDraft::kMaxNumber, expected) == expected) return;
  draft.fields.Fail(key, fmt::format("{} ({})", what, expected));
}

// The decimal number that was rounded to an f32: a worker computes with it in f64.
double Decimal(double value) {
  const std::string text = fmt::format("{}", static_cast<float>(value));
  double decimal = value;
  std::from_chars(text.data(), text.data() + text.size(), decimal);
  return decimal;
}

// Older files do not have the groups of experts: then they are those of DeepSeek-V2 and V3, told by
// the numbers of layers and experts, and of other models one group.
struct Groups {
  int64_t count = 1;
  int64_t used = 1;
};

Groups PublishedGroups(const nlohmann::json& json) {
  const auto is = [&](int64_t layers, int64_t experts) {
    return json["num_hidden_layers"] == layers && json["n_routed_experts"] == experts;
  };
  if (is(60, 160)) return {.count = 8, .used = 3};
  if (is(61, 256)) return {.count = 8, .used = 4};
  return {};
}

void WriteGroups(GgufDraft& draft, bool sigmoid) {
  const Groups known = PublishedGroups(draft.json);
  const int64_t count = draft.Positive("expert_group_count", known.count);
  const int64_t used = draft.Positive("expert_group_used_count", count > 1 ? known.used : 1);
  draft.json["n_group"] = count;
  draft.json["topk_group"] = used;
  if (!sigmoid) draft.json["topk_method"] = count > 1 ? "group_limited_greedy" : "greedy";
}

void WriteExperts(GgufDraft& draft, bool sigmoid) {
  nlohmann::json& json = draft.json;
  json["n_routed_experts"] = draft.Positive("expert_count");
  json["num_experts_per_tok"] = draft.Positive("expert_used_count");
  json["moe_intermediate_size"] = draft.Positive("expert_feed_forward_length");
  json["n_shared_experts"] =
      draft.fields.Int(draft.Key("expert_shared_count"), 0, GgufDraft::kMaxNumber);
  json["first_k_dense_replace"] =
      draft.fields.Int(draft.Key("leading_dense_block_count"), 0, GgufDraft::kMaxNumber);
  json["routed_scaling_factor"] =
      draft.fields.Float(draft.Key("expert_weights_scale"), 1e-3, 1e3, 1);
  json["norm_topk_prob"] = draft.fields.Bool(draft.Key("expert_weights_norm"), false);
  WriteGroups(draft, sigmoid);
}

// Files have mscale_all_dim only. In all published models mscale is equal to it.
void WriteYarnScale(GgufDraft& draft) {
  const auto scaling = draft.json.find("rope_scaling");
  if (scaling == draft.json.end() || (*scaling)["rope_type"] != "yarn") return;
  const double multiplier =
      draft.fields.Float(draft.Key("rope.scaling.yarn_log_multiplier"), 1e-4, 10);
  (*scaling)["mscale"] = (*scaling)["mscale_all_dim"] = Decimal(multiplier) / kLogMultiplierUnit;
}

}  // namespace

// Files with kv_b_proj in halves have the sizes of the cache's one head as key_length and
// value_length, and those of the model's heads under other names.
int64_t ReadLatentHeads(GgufDraft& draft) {
  const int64_t rank = draft.Positive("attention.kv_lora_rank");
  const int64_t rotated = draft.Positive("rope.dimension_count");
  const bool halves = draft.fields.Has(draft.Key("attention.key_length_mla"));
  const std::string size_key = halves ? "attention.key_length_mla" : "attention.key_length";
  const int64_t size = draft.Positive(size_key);
  if (size <= rotated) {
    draft.fields.Fail(draft.Key(size_key),
                      fmt::format("more than the rotated dimensions ({})", rotated));
  }
  if (halves) {
    Expect(draft, "attention.key_length", rank + rotated, "a latent's rank and rotated key");
    Expect(draft, "attention.value_length", rank, "a latent's rank");
  }
  const int64_t query_rank =
      draft.fields.Int(draft.Key("attention.q_lora_rank"), 0, GgufDraft::kMaxNumber, 0);
  nlohmann::json& json = draft.json;
  json["kv_lora_rank"] = rank;
  json["q_lora_rank"] = query_rank == 0 ? nlohmann::json() : nlohmann::json(query_rank);
  json["qk_rope_head_dim"] = rotated;
  json["qk_nope_head_dim"] = size - rotated;
  json["v_head_dim"] =
      draft.Positive(halves ? "attention.value_length_mla" : "attention.value_length");
  json["num_key_value_heads"] = json["num_attention_heads"];
  return rotated;
}

void WriteDeepseek(GgufDraft& draft) {
  const int64_t gating =
      draft.fields.Int(draft.Key("expert_gating_func"), kSoftmax, kSigmoid, kSoftmax);
  WriteExperts(draft, gating == kSigmoid);
  if (gating == kSigmoid) {
    draft.json["architectures"] = {"DeepseekV3ForCausalLM"};
  } else if (draft.json["norm_topk_prob"].get<bool>()) {
    draft.fields.Fail(draft.Key("expert_weights_norm"), "false with softmax");
  }
  WriteYarnScale(draft);
}

// GLM-4.5 has DeepSeek-V3's experts. block_count counts the layers for multi-token prediction too.
void WriteGlm4Moe(GgufDraft& draft) {
  RefuseWindow(draft);
  nlohmann::json& json = draft.json;
  const int64_t blocks = json["num_hidden_layers"].get<int64_t>();
  const int64_t further = draft.fields.Int(draft.Key("nextn_predict_layers"), 0, blocks - 1, 0);
  json["num_hidden_layers"] = blocks - further;
  json["num_nextn_predict_layers"] = further;
  draft.fields.Int(draft.Key("expert_gating_func"), kSigmoid, kSigmoid);
  WriteExperts(draft, true);
  json["use_qk_norm"] = draft.file.FindTensor("blk.0.attn_q_norm.weight") != nullptr;
}

}  // namespace penstock
