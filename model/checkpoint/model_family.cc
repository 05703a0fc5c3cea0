#include "model/checkpoint/model_family.h"

#include <algorithm>
#include <iterator>

namespace penstock {
namespace {

constexpr LayerNames kFused = {.qkv = "qkv_proj", .gate_up = "gate_up_proj"};
constexpr LayerNames kFusedMlp = {.gate_up = "gate_up_proj"};
constexpr LayerNames kNormsAround = {.attention_output_norm = "post_attention_layernorm",
                                     .mlp_norm = "pre_feedforward_layernorm",
                                     .mlp_output_norm = "post_feedforward_layernorm"};
constexpr LayerNames kNormsAfter = {.attention_norm = "",
                                    .attention_output_norm = "post_attention_layernorm",
                                    .mlp_norm = "",
                                    .mlp_output_norm = "post_feedforward_layernorm"};
constexpr LayerNames kGlm4 = {.attention_output_norm = "post_self_attn_layernorm",
                              .mlp_output_norm = "post_mlp_layernorm",
                              .gate_up = "gate_up_proj"};

constexpr LayerNames kMixtral = {.mlp = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};

constexpr ModelFamily kFamilies[] = {
    {.architecture = "LlamaForCausalLM",
     .kv_heads_may_be_absent = true,
     .attention_bias = BiasRule::kByField,
     .mlp_bias_field = true},
    {.architecture = "MistralForCausalLM", .windows = WindowRule::kAll},
    {.architecture = "Qwen2ForCausalLM",
     .attention_bias = BiasRule::kQkv,
     .windows = WindowRule::kUpper},
    {.architecture = "Qwen3ForCausalLM",
     .head_dim_required = true,
     .attention_bias = BiasRule::kByField,
     .qk_norm = QkNorm::kHead,
     .windows = WindowRule::kUpper},
    // Phi-3, Phi-3.5 and Phi-4.
    {.architecture = "Phi3ForCausalLM",
     .names = kFused,
     .absent = {.rms_norm_eps = 1e-5},
     .windows = WindowRule::kAll,
     .partial_rotary = true},
    {.architecture = "Gemma2ForCausalLM",
     .names = kNormsAround,
     .absent = {.sliding_window_pattern = 2, .tie_word_embeddings = true},
     .head_dim_required = true,
     .attention_bias = BiasRule::kByField,
     .norm_offset = 1,
     .activation = Activation::kGeluTanh,
     .windows = WindowRule::kAlternate,
     .query_scalar = true,
     .soft_caps = SoftCaps::kUsed,
     .root_embedding = true},
    {.architecture = "Gemma3ForCausalLM",
     .names = kNormsAround,
     .absent = {.rope_theta = 1e6, .sliding_window_pattern = 6, .tie_word_embeddings = true},
     .head_dim_required = true,
     .attention_bias = BiasRule::kByField,
     .qk_norm = QkNorm::kHead,
     .norm_offset = 1,
     .activation = Activation::kGeluTanh,
     .windows = WindowRule::kAlternate,
     .local_rope = true,
     .query_scalar = true,
     .soft_caps = SoftCaps::kRefused,
     .root_embedding = true},
    {.architecture = "GraniteForCausalLM",
     .attention_bias = BiasRule::kByField,
     .mlp_bias_field = true,
     .multipliers = true},
    {.architecture = "Olmo2ForCausalLM",
     .names = kNormsAfter,
     .absent = {.rms_norm_eps = 1e-5},
     .attention_bias = BiasRule::kByField,
     .qk_norm = QkNorm::kWidth},
    {.architecture = "GlmForCausalLM",
     .names = kFusedMlp,
     .absent = {.rms_norm_eps = 1.5625e-7, .partial_rotary_factor = 0.5},
     .head_dim_required = true,
     .attention_bias = BiasRule::kQkvByField,
     .partial_rotary = true,
     .interleaved = true},
    {.architecture = "Glm4ForCausalLM",
     .names = kGlm4,
     .absent = {.rms_norm_eps = 1.5625e-7, .partial_rotary_factor = 0.5},
     .head_dim_required = true,
     .attention_bias = BiasRule::kQkvByField,
     .partial_rotary = true,
     .interleaved = true},
    {.architecture = "SmolLM3ForCausalLM",
     .absent = {.rope_theta = 2e6, .tie_word_embeddings = true},
     .attention_bias = BiasRule::kByField,
     .mlp_bias_field = true,
     .windows = WindowRule::kRefused,
     .no_rope_layers = true},
    {.architecture = "MixtralForCausalLM",
     .names = kMixtral,
     .absent = {.rms_norm_eps = 1e-5, .rope_theta = 1e6},
     .windows = WindowRule::kAll,
     .experts = {.count = "num_local_experts", .intermediate = "intermediate_size"}},
    {.architecture = "Qwen2MoeForCausalLM",
     .attention_bias = BiasRule::kQkv,
     .windows = WindowRule::kRefused,
     .experts = {.count = "num_experts",
                 .intermediate = "moe_intermediate_size",
                 .shared = "shared_expert_intermediate_size",
                 .normalise = "norm_topk_prob",
                 .sparse_layers = true}},
    {.architecture = "Qwen3MoeForCausalLM",
     .attention_bias = BiasRule::kByField,
     .qk_norm = QkNorm::kHead,
     .windows = WindowRule::kRefused,
     .experts = {.count = "num_experts",
                 .intermediate = "moe_intermediate_size",
                 .normalise = "norm_topk_prob",
                 .sparse_layers = true}},
};

}  // namespace

std::span<const ModelFamily> ModelFamilies() { return kFamilies; }

const ModelFamily* FindModelFamily(std::string_view architecture) {
  const auto* const found = std::ranges::find(kFamilies, architecture, &ModelFamily::architecture);
  return found == std::end(kFamilies) ? nullptr : found;
}

}  // namespace penstock
