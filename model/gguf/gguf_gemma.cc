#include <string>
#include <utility>

#include "model/gguf/gguf_family.h"

namespace penstock {
namespace {

constexpr double kMaxCap = 1e4;

// The layers with the window: from a list with a value for each layer, or all but every n-th one.
void WriteWindowLayers(GgufDraft& draft, int64_t every) {
  const std::string key = draft.Key("attention.sliding_window_pattern");
  const GgufValue* value = draft.file.Find(key);
  if (value == nullptr || !value->is_array) {
    draft.json["sliding_window_pattern"] = draft.fields.Int(key, 1, GgufDraft::kMaxNumber, every);
    return;
  }
  const auto layers = static_cast<size_t>(draft.json["num_hidden_layers"].get<int64_t>());
  nlohmann::json types = nlohmann::json::array();
  for (const bool slides : draft.fields.Bools(key, layers)) {
    types.push_back(slides ? "sliding_attention" : "full_attention");
  }
  draft.json["layer_types"] = std::move(types);
}

// Files do not have query_pre_attn_scalar: it is as in all published models, which are told apart
// by their number of layers.
void WriteQueryScalar(GgufDraft& draft, int64_t layers_of_27b) {
  const nlohmann::json& json = draft.json;
  const bool is_27b = json["num_hidden_layers"] == layers_of_27b;
  draft.json["query_pre_attn_scalar"] =
      is_27b ? json["hidden_size"].get<int64_t>() / json["num_attention_heads"].get<int64_t>()
             : json["head_dim"].get<int64_t>();
}

void WriteActivation(GgufDraft& draft) {
  draft.json.erase("hidden_act");
  draft.json["hidden_activation"] = "gelu_pytorch_tanh";
}

}  // namespace

void WriteGemma2(GgufDraft& draft) {
  WriteActivation(draft);
  draft.json["sliding_window"] = draft.Positive("attention.sliding_window");
  WriteWindowLayers(draft, 2);
  WriteQueryScalar(draft, 46);
  for (const char* name : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    draft.json[name] = draft.fields.Float(draft.Key(name), 1e-6, kMaxCap);
  }
}

void WriteGemma3(GgufDraft& draft) {
  WriteActivation(draft);
  const std::string window = draft.Key("attention.sliding_window");
  if (draft.fields.Int(window, 0, GgufDraft::kMaxNumber, 0) != 0) {
    draft.json["sliding_window"] = draft.Positive("attention.sliding_window");
    WriteWindowLayers(draft, 6);
  } else {  // all layers see all tokens
    draft.json["sliding_window"] = draft.json["max_position_embeddings"];
    draft.json["sliding_window_pattern"] = 1;
  }
  WriteQueryScalar(draft, 62);
  draft.fields.Float(draft.Key("rope.freq_base"), 1, GgufDraft::kMaxTheta);  // has no default here
  draft.json["rope_local_base_freq"] =
      draft.fields.Float(draft.Key("rope.freq_base_swa"), 1, GgufDraft::kMaxTheta, 10000);
}

}  // namespace penstock
