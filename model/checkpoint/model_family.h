#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace penstock {

// The activation of an MLP: act(gate) * up, or act(up) without a gate. kGelu is exact, kGeluTanh
// its approximation by tanh.
enum class Activation { kSilu, kGeluTanh, kGelu };

// RMS norm of queries and keys before RoPE: of each head, or of all heads together.
enum class QkNorm { kNone, kHead, kWidth };

// The order of rows in one tensor of queries, keys and values.
enum class QkvOrder {
  kStacked,  // all queries, all keys, all values
  kGroups,   // for each head of keys: its queries, the key, the value
};

// The names of tensors, which precede ".weight"; those of a layer follow `layers` and "N.". A
// family without a tensor has an empty name for it.
struct LayerNames {
  std::string_view layers = "model.layers.";
  std::string_view embedding = "model.embed_tokens";
  std::string_view positions;  // learned, [positions][hidden]
  std::string_view final_norm = "model.norm";
  std::string_view head = "lm_head";
  // Matrices of layers are stored [inputs][outputs].
  bool transposed = false;
  // Norms of the inputs of attention and MLP, and of their outputs before they are added to the
  // residual.
  std::string_view attention_norm = "input_layernorm";
  std::string_view attention_output_norm;
  std::string_view mlp_norm = "post_attention_layernorm";
  std::string_view mlp_output_norm;
  std::string_view attention = "self_attn";
  // Queries, keys and values in one tensor. Empty: q_proj, k_proj, v_proj.
  std::string_view qkv;
  QkvOrder qkv_order = QkvOrder::kStacked;
  std::string_view attention_output = "o_proj";
  std::string_view sinks = "sinks";  // the tensor's whole name
  std::string_view gate_up;          // gate, then up, in one tensor; empty: gate and up
  std::string_view mlp = "mlp";
  std::string_view gate = "gate_proj";  // both names empty: the MLP has no gate
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
  std::string_view router = "gate";
  bool experts_together = false;  // one tensor has the matrices of all experts (expert_tensors.h)
  // Matrices of experts are stored [inputs][outputs] unless they are quantised, and the outputs of
  // gate_up alternate: gate, up.
  bool gpt_oss_experts = false;
  std::string_view shared = "shared_expert";  // of an MLP with experts
  // Latents: in place of kv_b_proj, k_b_proj has for each head [rank][plain dims], and v_b_proj
  // [value dims][rank].
  bool latent_halves = false;

  bool HasGate() const { return !gate.empty() || !gate_up.empty(); }

  bool operator==(const LayerNames&) const = default;
};

// The tensors of attention that have biases.
enum class BiasRule {
  kNone,
  kQkv,         // queries, keys and values, unless qkv_bias is false
  kQkvByField,  // these, if attention_bias is true
  kByField,     // these and the output, if attention_bias is true
  kAttention,   // these; attention_bias must be true
  kAll,         // all matrices, those of the MLP too, unless FieldNames::bias says otherwise
};

// The layers in which a token attends to its last sliding_window positions only. layer_types, if
// present, takes precedence.
enum class WindowRule {
  kNone,       // no layer
  kAll,        // all, if sliding_window is set
  kUpper,      // if use_sliding_window is true, the layers from max_window_layers on
  kAlternate,  // all but every sliding_window_pattern-th
  kRefused,    // use_sliding_window must be false
};

// The fields attn_logit_softcapping and final_logit_softcapping.
enum class SoftCaps { kNone, kUsed, kRefused };

// Names of fields of config.json that differ among families.
struct FieldNames {
  std::string_view layers = "num_hidden_layers";
  std::string_view hidden = "hidden_size";
  std::string_view intermediate = "intermediate_size";
  std::string_view heads = "num_attention_heads";
  std::string_view max_position = "max_position_embeddings";
  std::string_view epsilon = "rms_norm_eps";
  std::string_view activation = "hidden_act";
  std::string_view rope_theta = "rope_theta";
  std::string_view partial_rotary = "partial_rotary_factor";
  std::string_view bias;  // of BiasRule::kAll; empty: attention_bias, and MLPs always have biases
};

// The choice of experts.
enum class ExpertRule {
  kSoftmax,
  kDeepseekSoftmax,  // by topk_method, from all experts or from the best groups
  kDeepseekSigmoid,  // by sigmoids and a learned bias, from the best groups
};

// Names of the fields of config.json that describe experts.
struct ExpertFields {
  std::string_view count;          // empty: the family has dense MLPs
  std::string_view per_token_too;  // must be num_experts_per_tok if it is present
  std::string_view intermediate;   // an expert's intermediate size
  std::string_view shared;         // that of the expert that all tokens use; empty: none
  std::string_view normalise;      // weights of the chosen experts add up to 1; empty: always
  std::string_view limit;          // of the clamped gate; empty: the gate is a plain one
  bool biases = false;             // the router and all matrices of experts have biases
  bool sparse_layers = false;      // decoder_sparse_step and mlp_only_layers leave layers dense
  // DeepSeek's fields: n_shared_experts, first_k_dense_replace, moe_layer_freq,
  // routed_scaling_factor, n_group and topk_group.
  ExpertRule rule = ExpertRule::kSoftmax;
};

// The values of fields that config.json leaves out, as in transformers.
struct AbsentFields {
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  double partial_rotary_factor = 1;
  int32_t sliding_window_pattern = 0;
  bool tie_word_embeddings = false;
  int32_t mlp_factor = 0;    // intermediate size over hidden size; 0: the field is required
  int32_t max_position = 0;  // 0: the field is required
  bool bias = true;          // FieldNames::bias
};

// An architecture of config.json, by its differences from a decoder with RMS norms before attention
// and MLP, RoPE over whole heads, and a SiLU gate. Plain data; model_family.cc has one row for
// each.
struct ModelFamily {
  std::string_view architecture;
  LayerNames names;
  FieldNames fields;
  AbsentFields absent;
  bool kv_heads_may_be_absent = false;  // then as many as heads
  bool head_dim_required = false;       // transformers' default is not hidden_size / heads
  BiasRule attention_bias = BiasRule::kNone;
  bool mlp_bias_field = false;  // mlp_bias gives all matrices of the MLP a bias
  QkNorm qk_norm = QkNorm::kNone;
  float norm_offset = 0;        // added to the stored weights of norms
  bool layer_norm = false;      // norms are layer norms with a bias
  bool parallel_field = false;  // use_parallel_residual: attention and MLP have the same input
  bool falcon_fields = false;   // multi_query, new_decoder_architecture and parallel_attn
  bool gpt2_fields = false;     // fields of GPT-2 that must have their usual values
  bool qk_norm_field = false;   // use_qk_norm gives qk_norm
  bool latents = false;         // multi-head latent attention: kv_lora_rank, q_lora_rank, ...
  Activation activation = Activation::kSilu;
  WindowRule windows = WindowRule::kNone;
  bool sinks = false;  // each head has a score without a value in its softmax
  // RoPE.
  bool partial_rotary = false;  // partial_rotary_factor of each head is rotated
  bool interleaved = false;     // pairs lie side by side in the checkpoint
  bool local_rope = false;      // layers with a window have rope_local_base_freq and no scaling
  bool rope_required = false;   // rope_scaling or rope_parameters must be there
  bool no_rope_layers = false;  // the layers that no_rope_layers marks 0 have no RoPE
  // Factors and caps.
  bool query_scalar = false;  // scores are divided by the root of query_pre_attn_scalar
  SoftCaps soft_caps = SoftCaps::kNone;
  bool root_embedding = false;  // embeddings are multiplied by the root of hidden_size, in bf16
  bool multipliers = false;     // embedding_, attention_ and residual_multiplier, logits_scaling
  ExpertFields experts;
};

std::span<const ModelFamily> ModelFamilies();
const ModelFamily* FindModelFamily(std::string_view architecture);  // null if there is no such row

}  // namespace penstock
