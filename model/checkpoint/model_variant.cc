#include "model/checkpoint/model_variant.h"

namespace penstock {
namespace {

void Require(JsonFields& fields, const std::string& key, bool value) {
  if (fields.Bool(key, value) != value) fields.Fail(key, value ? "true" : "false");
}

// Falcon 7B has one head of keys and one norm for both branches. Models of the "new decoder
// architecture" (40B, 180B, 11B) have groups of heads, and one norm or two. Those without
// parallel_attn (RW) are sequential.
void ReadFalcon(JsonFields& fields, ModelConfig* config) {
  Require(fields, "alibi", false);
  const bool grouped = fields.Bool("new_decoder_architecture", false);
  const bool parallel = fields.Bool("parallel_attn", true);
  if (grouped) {
    config->kv_heads =
        static_cast<int32_t>(fields.Int("num_kv_heads", 1, config->heads, config->heads));
    if (config->heads % config->kv_heads != 0) {
      fields.Fail("num_kv_heads", fmt::format("a divisor of {}", config->heads));
    }
  } else {
    config->kv_heads = fields.Bool("multi_query", true) ? 1 : config->heads;
  }
  const int64_t norms = fields.Int("num_ln_in_parallel_attn", 1, 2, grouped ? 2 : 1);
  if (grouped && !parallel) fields.Fail("parallel_attn", "true with new_decoder_architecture");
  if (!grouped && norms == 2) {
    fields.Fail("num_ln_in_parallel_attn", "1 without new_decoder_architecture");
  }
  config->parallel_residual = parallel;
  if (norms == 2) config->names.attention_norm = "ln_attn";
  if (parallel) config->names.mlp_norm = norms == 2 ? "ln_mlp" : "input_layernorm";
}

}  // namespace

void ReadVariant(JsonFields& fields, const ModelFamily& family, ModelConfig* config) {
  if (family.parallel_field) {
    config->parallel_residual = fields.Bool("use_parallel_residual", true);
  }
  if (family.falcon_fields) ReadFalcon(fields, config);
  if (!family.gpt2_fields) return;
  Require(fields, "scale_attn_weights", true);
  Require(fields, "scale_attn_by_inverse_layer_idx", false);
  Require(fields, "add_cross_attention", false);
}

}  // namespace penstock
