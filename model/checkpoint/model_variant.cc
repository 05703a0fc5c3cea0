#include "model/checkpoint/model_variant.h"

#include <cmath>

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

constexpr int64_t kMaxLatentRank = 1024;  // kHeadInputsMax of the kernels
constexpr int64_t kMaxQueryRank = 65536;
constexpr int64_t kMaxDims = 512;
constexpr int32_t kMaxLatentHeads = 128;  // that share a latent

int32_t MultipleOf8(JsonFields& fields, const std::string& key, int64_t max) {
  const int64_t value = fields.Int(key, 8, max);
  if (value % 8 != 0) fields.Fail(key, "a multiple of 8");
  return static_cast<int32_t>(value);
}

}  // namespace

void ReadLatents(JsonFields& fields, ModelConfig* config) {
  Require(fields, "attention_bias", false);
  Require(fields, "mlp_bias", false);
  LatentConfig& latent = config->latent;
  latent.rank = MultipleOf8(fields, "kv_lora_rank", kMaxLatentRank);
  if (fields.Has("q_lora_rank")) {
    latent.query_rank = MultipleOf8(fields, "q_lora_rank", kMaxQueryRank);
  }
  latent.plain_dims = MultipleOf8(fields, "qk_nope_head_dim", kMaxDims);
  latent.rope_dims = MultipleOf8(fields, "qk_rope_head_dim", kMaxDims);
  latent.value_dims = MultipleOf8(fields, "v_head_dim", kMaxDims);
  if (config->heads > kMaxLatentHeads) {
    fields.Fail("num_attention_heads", fmt::format("at most {} with latents", kMaxLatentHeads));
  }
  config->kv_heads = 1;
  config->head_dim = latent.rank + latent.rope_dims;
}

void SetLatentRope(JsonFields& fields, ModelConfig* config) {
  const LatentConfig& latent = config->latent;
  config->rope.rotary_dims = latent.rope_dims;
  config->rope.interleaved = fields.Bool("rope_interleave", true);
  config->attention_scale =
      config->rope.score_factor / std::sqrt(static_cast<float>(latent.QueryDims()));
}

void ReadVariant(JsonFields& fields, const ModelFamily& family, ModelConfig* config) {
  if (family.parallel_field) {
    config->parallel_residual = fields.Bool("use_parallel_residual", true);
  }
  if (family.falcon_fields) ReadFalcon(fields, config);
  if (family.qk_norm_field && !fields.Bool("use_qk_norm", false)) config->qk_norm = QkNorm::kNone;
  if (!family.gpt2_fields) return;
  Require(fields, "scale_attn_weights", true);
  Require(fields, "scale_attn_by_inverse_layer_idx", false);
  Require(fields, "add_cross_attention", false);
}

}  // namespace penstock
