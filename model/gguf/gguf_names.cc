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

constexpr std::array<NamePair, 3> kOuter = {{{"token_embd.weight", "model.embed_tokens.weight"},
                                             {"output_norm.weight", "model.norm.weight"},
                                             {"output.weight", "lm_head.weight"}}};

// Modules of a layer; ".weight" or ".bias" follows.
constexpr std::array<NamePair, 17> kModules = {{{"attn_norm", "input_layernorm"},
                                                {"attn_q", "self_attn.q_proj"},
                                                {"attn_k", "self_attn.k_proj"},
                                                {"attn_v", "self_attn.v_proj"},
                                                {"attn_output", "self_attn.o_proj"},
                                                {"attn_q_norm", "self_attn.q_norm"},
                                                {"attn_k_norm", "self_attn.k_norm"},
                                                {"ffn_norm", "post_attention_layernorm"},
                                                {"ffn_gate", "mlp.gate_proj"},
                                                {"ffn_up", "mlp.up_proj"},
                                                {"ffn_down", "mlp.down_proj"},
                                                {"attn_sinks", "self_attn.sinks"},
                                                {"post_attention_norm", "post_attention_norm"},
                                                {"ffn_gate_inp", "mlp.router"},
                                                {"ffn_gate_exps", "mlp.experts.gate_proj"},
                                                {"ffn_up_exps", "mlp.experts.up_proj"},
                                                {"ffn_down_exps", "mlp.experts.down_proj"}}};

constexpr std::string_view kGgufLayer = "blk.";
constexpr std::string_view kHuggingFaceLayer = "model.layers.";

// "blk.3.attn_q.weight" in its parts: layer "3", module "attn_q", kind "weight".
struct LayerName {
  std::string_view layer;
  std::string_view module;
  std::string_view kind;
};

bool IsLayerNumber(std::string_view text) {
  return !text.empty() && text.size() <= 5 && (text.size() == 1 || text[0] != '0') &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

std::optional<LayerName> SplitLayerName(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  const size_t first = name.find('.');
  const size_t last = name.rfind('.');
  if (first == std::string_view::npos || first == last) return std::nullopt;
  const LayerName parts = {name.substr(0, first), name.substr(first + 1, last - first - 1),
                           name.substr(last + 1)};
  if (!IsLayerNumber(parts.layer) || (parts.kind != "weight" && parts.kind != "bias")) {
    return std::nullopt;
  }
  return parts;
}

using Side = std::string_view NamePair::*;

std::optional<std::string> Translate(std::string_view name, Side from, Side to,
                                     std::string_view from_layer, std::string_view to_layer) {
  const auto outer = std::ranges::find(kOuter, name, from);
  if (outer != kOuter.end()) return std::string((*outer).*to);
  const auto parts = SplitLayerName(name, from_layer);
  if (!parts) return std::nullopt;
  const auto module = std::ranges::find(kModules, parts->module, from);
  if (module == kModules.end()) return std::nullopt;
  return fmt::format("{}{}.{}.{}", to_layer, parts->layer, (*module).*to, parts->kind);
}

}  // namespace

std::optional<std::string> HuggingFaceName(std::string_view gguf_name) {
  return Translate(gguf_name, &NamePair::gguf, &NamePair::hugging_face, kGgufLayer,
                   kHuggingFaceLayer);
}

std::optional<std::string> GgufName(std::string_view hugging_face_name) {
  return Translate(hugging_face_name, &NamePair::hugging_face, &NamePair::gguf, kHuggingFaceLayer,
                   kGgufLayer);
}

bool HasInterleavedRows(std::string_view architecture, std::string_view gguf_name) {
  const auto parts = SplitLayerName(gguf_name, kGgufLayer);
  return architecture == "llama" && parts &&
         (parts->module == "attn_q" || parts->module == "attn_k");
}

bool HasExpertsTogether(std::string_view architecture) {
  return architecture == "gpt-oss" || architecture == "qwen3moe";
}

bool IsGgufTable(std::string_view gguf_name) { return gguf_name == "rope_freqs.weight"; }

}  // namespace penstock
