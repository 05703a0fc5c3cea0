#include <string>

#include "model/gguf/gguf_family.h"

// Families with layer norms, whose MLPs have no gate.
namespace penstock {
namespace {

constexpr int64_t kStarcoder2Window = 4096;

bool HasTensor(const GgufDraft& draft, const char* name) {
  return draft.file.FindTensor(name) != nullptr;
}

}  // namespace

// Models with groups of heads are of the "new decoder architecture". Those with one norm have a
// base of their own, which converters forget.
void WriteFalcon(GgufDraft& draft) {
  RefuseWindow(draft);
  nlohmann::json& json = draft.json;
  const bool grouped = json["num_key_value_heads"].get<int64_t>() > 1;
  const bool two_norms = HasTensor(draft, "blk.0.attn_norm_2.weight");
  json["hidden_act"] = "gelu";
  json["bias"] = HasTensor(draft, "blk.0.attn_qkv.bias");
  json["new_decoder_architecture"] = grouped;
  json["num_ln_in_parallel_attn"] = two_norms ? 2 : 1;
  const std::string base = draft.Key("rope.freq_base");
  if (!grouped || two_norms || draft.fields.Has(base)) return;
  draft.fields.Refuse(base,
                      "is missing; it may only be so in models with attn_norm_2, or with one "
                      "head of keys");
}

void WriteGpt2(GgufDraft& draft) {
  RefuseWindow(draft);
  draft.json["hidden_act"] = "gelu_new";
}

// Files do not say which GELU the model has: GPT-NeoX-20B, which its shape tells, has the
// approximation, other published models have the exact one.
void WriteGptNeox(GgufDraft& draft) {
  RefuseWindow(draft);
  nlohmann::json& json = draft.json;
  const bool is_20b = json["num_hidden_layers"] == 44 && json["hidden_size"] == 6144;
  json["hidden_act"] = is_20b ? "gelu_fast" : "gelu";
  const std::string parallel = draft.Key("use_parallel_residual");
  if (!draft.fields.Has(parallel)) draft.fields.Refuse(parallel, "is missing");
  json["use_parallel_residual"] = draft.fields.Bool(parallel, true);
}

// Files do not have the window, which is the same in all published models.
void WriteStarcoder2(GgufDraft& draft) {
  draft.json["sliding_window"] = draft.Positive("attention.sliding_window", kStarcoder2Window);
  draft.json["hidden_act"] = "gelu_pytorch_tanh";
  draft.json["use_bias"] = HasTensor(draft, "blk.0.attn_q.bias");
}

}  // namespace penstock
