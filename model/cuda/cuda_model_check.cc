#include "model/cuda/cuda_model_check.h"

#include <algorithm>

#include "kernels/cuda/row_params.h"

namespace penstock {
namespace {

bool HasOtherRope(const ModelConfig& config) {
  return std::ranges::any_of(config.layer_rope,
                             [](LayerRope rope) { return rope != LayerRope::kMain; });
}

// The first part of `config` that differs from Llama's where the kernels do not; empty: none.
// Every field that model_family.cc sets must be here or in the kernels.
std::string_view UnsupportedPart(const ModelConfig& config) {
  if (config.hidden > cuda::kHiddenMax) return "hidden_size above 16384";
  if (config.HasLatents()) return "multi-head latent attention (kv_lora_rank)";
  if (config.layer_norm) return "layer norms";
  if (config.parallel_residual) return "parallel attention and MLP (use_parallel_residual)";
  if (config.norm_offset != 0) return "an offset of the norms' weights";
  if (config.qk_norm == QkNorm::kWidth) return "norms of queries and keys over all heads";
  if (config.activation != Activation::kSilu) return "another activation than silu (hidden_act)";
  if (HasOtherRope(config))
    return "another RoPE in some layers (no_rope_layers, rope_local_base_freq)";
  if (config.rope.rotary_dims != 0) return "partial_rotary_factor";
  if (config.rope.scaling == RopeScaling::kLongRope) return "longrope (rope_scaling)";
  if (config.attention_scale != 0) return "query_pre_attn_scalar or attention_multiplier";
  if (config.attention_sinks) return "attention sinks";
  if (config.attention_cap != 0) return "attn_logit_softcapping";
  if (config.logit_cap != 0) return "final_logit_softcapping";
  if (config.embedding_multiplier != 1) return "a multiplier of embeddings";
  if (config.residual_multiplier != 1) return "residual_multiplier";
  if (config.logit_divisor != 1) return "logits_scaling";
  if (config.experts.count != 0) return "experts";
  if (!(config.names == LayerNames())) return "other norms or tensors in a layer";
  return {};
}

}  // namespace

absl::Status CheckCudaModel(const ModelConfig& config) {
  const std::string_view part = UnsupportedPart(config);
  if (part.empty()) return absl::OkStatus();
  return FailedPrecondition(
      "{} has {}, which the CUDA kernels do not implement; use --device=cpu instead",
      config.architecture, part);
}

}  // namespace penstock
