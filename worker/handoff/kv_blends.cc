#include "worker/handoff/kv_blends.h"

namespace penstock {

absl::StatusOr<KvBlends> KvBlends::Open(double deviation_max, const Ability& ability) {
  KvBlends opened;
  opened.deviation_max_ = static_cast<float>(deviation_max);
  if (!opened.any()) return opened;
  if (!ability.runner) {
    return FailedPrecondition(
        "kv_blend_deviation is {}, which needs a model of at least three layers without sliding "
        "windows, latents, learned positions and multi-token prediction, and a kv_format without a "
        "span; on GPUs also kv_format=bf16, tensor_parallel=1, numerics=exact and "
        "kv_eviction=none; "
        "use 0",
        deviation_max);
  }
  if (!ability.cache) {
    return FailedPrecondition(
        "kv_blend_deviation is {}, which needs the prefix cache, and it is off; use 0",
        deviation_max);
  }
  if (ability.step_tokens < kBlendedTokensMax) {
    return InvalidArgument(
        "kv_blend_deviation is {}, which needs chunk_tokens of at least {}, not {}", deviation_max,
        kBlendedTokensMax, ability.step_tokens);
  }
  return opened;
}

absl::StatusOr<std::optional<KvBlend>> KvBlends::Take(std::string_view policy) const {
  const auto parsed = ParseKvPolicy(policy);
  if (!parsed.ok()) return Annotate(parsed.status(), "kv_policy");
  const std::optional<KvBlend> blend = BlendOf(*parsed);
  if (blend && !any()) {
    return FailedPrecondition(
        "kv_policy is {}, and this worker's --kv_blend_deviation is 0; replan", *parsed);
  }
  return blend;
}

}  // namespace penstock
