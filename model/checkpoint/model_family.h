#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace penstock {

// The product of an MLP's gate with its up projection: act(gate) * up.
enum class Activation { kSilu, kGeluTanh };

// RMS norm of queries and keys before RoPE: of each head, or of all heads together.
enum class QkNorm { kNone, kHead, kWidth };

// The names of a layer's tensors, which follow "model.layers.N." and precede ".weight". A family
// without a tensor has an empty name for it.
struct LayerNames {
  // Norms of the inputs of attention and MLP, and of their outputs before they are added to the
  // residual.
  std::string_view attention_norm = "input_layernorm";
  std::string_view attention_output_norm;
  std::string_view mlp_norm = "post_attention_layernorm";
  std::string_view mlp_output_norm;
  // Queries, keys and values in one tensor, in this order of rows. Empty: q_proj, k_proj, v_proj.
  std::string_view qkv;
  std::string_view gate_up;  // gate, then up, in one tensor; empty: gate and up
  std::string_view mlp = "mlp";
  std::string_view gate = "gate_proj";
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";

  bool operator==(const LayerNames&) const = default;
};

// The tensors of attention that have biases.
enum class BiasRule {
  kNone,
  kQkv,         // queries, keys and values, unless qkv_bias is false
  kQkvByField,  // these, if attention_bias is true
  kByField,     // these and the output, if attention_bias is true
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

// Names of the fields of config.json that describe experts.
struct ExpertFields {
  std::string_view count;         // empty: the family has dense MLPs
  std::string_view intermediate;  // an expert's intermediate size
  std::string_view shared;        // that of the expert that all tokens use; empty: none
  std::string_view normalise;     // weights of the chosen experts add up to 1; empty: always
  bool sparse_layers = false;     // decoder_sparse_step and mlp_only_layers leave layers dense
};

// The values of fields that config.json leaves out, as in transformers.
struct AbsentFields {
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  double partial_rotary_factor = 1;
  int32_t sliding_window_pattern = 0;
  bool tie_word_embeddings = false;
};

// An architecture of config.json, by its differences from a decoder with RMS norms before attention
// and MLP, RoPE over whole heads, and a SiLU gate. Plain data; model_family.cc has one row for
// each.
struct ModelFamily {
  std::string_view architecture;
  LayerNames names;
  AbsentFields absent;
  bool kv_heads_may_be_absent = false;  // then as many as heads
  bool head_dim_required = false;       // transformers' default is not hidden_size / heads
  BiasRule attention_bias = BiasRule::kNone;
  bool mlp_bias_field = false;  // mlp_bias gives all matrices of the MLP a bias
  QkNorm qk_norm = QkNorm::kNone;
  float norm_offset = 0;  // added to the stored weights of norms
  Activation activation = Activation::kSilu;
  WindowRule windows = WindowRule::kNone;
  // RoPE.
  bool partial_rotary = false;  // partial_rotary_factor of each head is rotated
  bool interleaved = false;     // pairs lie side by side in the checkpoint
  bool local_rope = false;      // layers with a window have rope_local_base_freq and no scaling
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
