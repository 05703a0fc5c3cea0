#include "model/gguf/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace penstock {
namespace {

struct NamePair {
  std::string_view gguf;
  std::string_view hugging_face;
};

constexpr std::array<NamePair, 5> kOuter = {
    {{"token_embd.weight", "model.embed_tokens.weight"},
     {"position_embd.weight", "model.embed_positions.weight"},
     {"output_norm.weight", "model.norm.weight"},
     {"output_norm.bias", "model.norm.bias"},
     {"output.weight", "lm_head.weight"}}};

// Modules of a layer; ".weight" or ".bias" follows.
constexpr std::array<NamePair, 38> kModules = {{{"attn_norm", "input_layernorm"},
                                                {"attn_norm_2", "ln_attn"},
                                                {"attn_q", "self_attn.q_proj"},
                                                {"attn_k", "self_attn.k_proj"},
                                                {"attn_v", "self_attn.v_proj"},
                                                {"attn_qkv", "self_attn.qkv_proj"},
                                                {"attn_output", "self_attn.o_proj"},
                                                {"attn_q_norm", "self_attn.q_norm"},
                                                {"attn_k_norm", "self_attn.k_norm"},
                                                {"attn_q_a", "self_attn.q_a_proj"},
                                                {"attn_q_a_norm", "self_attn.q_a_layernorm"},
                                                {"attn_q_b", "self_attn.q_b_proj"},
                                                {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
                                                {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
                                                {"attn_kv_b", "self_attn.kv_b_proj"},
                                                {"attn_k_b", "self_attn.k_b_proj"},
                                                {"attn_v_b", "self_attn.v_b_proj"},
                                                {"ffn_norm", "post_attention_layernorm"},
                                                {"ffn_gate", "mlp.gate_proj"},
                                                {"ffn_up", "mlp.up_proj"},
                                                {"ffn_down", "mlp.down_proj"},
                                                {"attn_sinks", "self_attn.sinks"},
                                                {"post_attention_norm", "post_attention_norm"},
                                                {"post_ffw_norm", "post_ffw_norm"},
                                                {"ffn_gate_inp", "mlp.router"},
                                                {"ffn_gate_exps", "mlp.experts.gate_proj"},
                                                {"ffn_up_exps", "mlp.experts.up_proj"},
                                                {"ffn_down_exps", "mlp.experts.down_proj"},
                                                {"ffn_gate_inp_shexp", "mlp.shared_experts_gate"},
                                                {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
                                                {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
                                                {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
                                                {"nextn.eh_proj", "eh_proj"},
                                                {"nextn.embed_tokens", "embed_tokens"},
                                                {"nextn.enorm", "enorm"},
                                                {"nextn.hnorm", "hnorm"},
                                                {"nextn.shared_head_head", "shared_head.head"},
                                                {"nextn.shared_head_norm", "shared_head.norm"}}};

// The matrices of one expert, in old files: "ffn_gate.7" is "mlp.experts.7.gate_proj".
constexpr std::array<NamePair, 3> kExpertModules = {
    {{"ffn_gate.", ".gate_proj"}, {"ffn_up.", ".up_proj"}, {"ffn_down.", ".down_proj"}}};
constexpr std::string_view kExperts = "mlp.experts.";

// What follows a layer as a whole.
constexpr NamePair kChoiceBias = {"exp_probs_b.bias", "mlp.router.e_score_correction_bias"};

constexpr std::string_view kGgufLayer = "blk.";
constexpr std::string_view kHuggingFaceLayer = "model.layers.";

bool IsNumber(std::string_view text) {
  return !text.empty() && text.size() <= 5 && (text.size() == 1 || text[0] != '0') &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// "blk.3.attn_q.weight" in two parts: layer "3", and "attn_q.weight".
struct LayerName {
  std::string_view layer;
  std::string_view inside;
};

std::optional<LayerName> SplitLayerName(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || !IsNumber(name.substr(0, dot))) return std::nullopt;
  return LayerName{name.substr(0, dot), name.substr(dot + 1)};
}

using Side = std::string_view NamePair::*;
constexpr Side kGguf = &NamePair::gguf, kHuggingFace = &NamePair::hugging_face;

std::optional<std::string> ExpertModule(std::string_view module, Side from) {
  for (const NamePair& pair : kExpertModules) {
    if (from == kGguf && module.starts_with(pair.gguf)) {
      const std::string_view number = module.substr(pair.gguf.size());
      if (IsNumber(number)) return fmt::format("{}{}{}", kExperts, number, pair.hugging_face);
    }
    if (from == kHuggingFace && module.starts_with(kExperts) &&
        module.ends_with(pair.hugging_face)) {
      const std::string_view rest = module.substr(kExperts.size());
      if (rest.size() <= pair.hugging_face.size()) continue;
      const std::string_view number = rest.substr(0, rest.size() - pair.hugging_face.size());
      if (IsNumber(number)) return fmt::format("{}{}", pair.gguf, number);
    }
  }
  return std::nullopt;
}

std::optional<std::string> TranslateInside(std::string_view inside, Side from, Side to) {
  if (inside == kChoiceBias.*from) return std::string(kChoiceBias.*to);
  const size_t dot = inside.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view module = inside.substr(0, dot), kind = inside.substr(dot);
  if (kind != ".weight" && kind != ".bias") return std::nullopt;
  const auto known = std::ranges::find(kModules, module, from);
  if (known != kModules.end()) return fmt::format("{}{}", (*known).*to, kind);
  const auto expert = ExpertModule(module, from);
  if (!expert) return std::nullopt;
  return fmt::format("{}{}", *expert, kind);
}

std::optional<std::string> Translate(std::string_view name, Side from, Side to,
                                     std::string_view from_layer, std::string_view to_layer) {
  const auto outer = std::ranges::find(kOuter, name, from);
  if (outer != kOuter.end()) return std::string((*outer).*to);
  const auto parts = SplitLayerName(name, from_layer);
  if (!parts) return std::nullopt;
  const auto inside = TranslateInside(parts->inside, from, to);
  if (!inside) return std::nullopt;
  return fmt::format("{}{}.{}", to_layer, parts->layer, *inside);
}

}  // namespace

std::optional<std::string> HuggingFaceName(std::string_view gguf_name) {
  return Translate(gguf_name, kGguf, kHuggingFace, kGgufLayer, kHuggingFaceLayer);
}

std::optional<std::string> GgufName(std::string_view hugging_face_name) {
  return Translate(hugging_face_name, kHuggingFace, kGguf, kHuggingFaceLayer, kGgufLayer);
}

bool HasInterleavedRows(std::string_view architecture, std::string_view gguf_name) {
  const auto parts = SplitLayerName(gguf_name, kGgufLayer);
  if ((architecture != "llama" && architecture != "granite") || !parts) return false;
  const std::string_view module = parts->inside.substr(0, parts->inside.rfind('.'));
  return module == "attn_q" || module == "attn_k";
}

bool IsGgufTable(std::string_view architecture, std::string_view gguf_name) {
  if (gguf_name == "rope_freqs.weight") return true;
  return architecture == "phi3" &&
         (gguf_name == "rope_factors_long.weight" || gguf_name == "rope_factors_short.weight");
}

}  // namespace penstock
