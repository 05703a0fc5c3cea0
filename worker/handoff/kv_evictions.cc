#include "worker/handoff/kv_evictions.h"

#include <algorithm>

namespace penstock {

absl::StatusOr<KvEvictions> KvEvictions::Open(const std::string& kv_eviction,
                                              const Ability& ability) {
  auto methods = ParseKvEvictions(kv_eviction);
  if (!methods.ok()) return Annotate(methods.status(), "kv_eviction");
  KvEvictions opened;
  opened.methods_ = *std::move(methods);
  if (opened.methods_.empty()) return opened;
  if (!ability.runner) {
    return FailedPrecondition(
        "kv_eviction is {}, which needs a kv_format without a span, a model without sliding "
        "windows, attention sinks and latents; use none",
        kv_eviction);
  }
  if (ability.step_tokens < kObservedTokensMax) {
    return InvalidArgument("kv_eviction is {}, which needs chunk_tokens of at least {}, not {}",
                           kv_eviction, kObservedTokensMax, ability.step_tokens);
  }
  return opened;
}

absl::StatusOr<std::optional<KvEviction>> KvEvictions::Take(std::string_view policy,
                                                            uint32_t prompt_tokens,
                                                            uint32_t tokens) const {
  const auto parsed = ParseKvPolicy(policy);
  if (!parsed.ok()) return Annotate(parsed.status(), "kv_policy");
  const std::optional<KvEviction> eviction = EvictionOf(*parsed);
  if (!eviction) return std::optional<KvEviction>();
  const std::string& name = KvEvictionName(eviction->method);
  if (std::find(methods_.begin(), methods_.end(), name) == methods_.end()) {
    return FailedPrecondition("kv_policy is {}, and this worker's --kv_eviction lacks {}; replan",
                              *parsed, name);
  }
  if (!eviction->spans.empty() && eviction->spans.back().end > prompt_tokens) {
    return InvalidArgument("kv_policy is {}, whose spans end at {}; the prompt has {} tokens",
                           *parsed, eviction->spans.back().end, prompt_tokens);
  }
  // A prompt with spans is put in their order, for the compactions that may come.
  const bool orders = eviction->EvictsAnswer() && !eviction->spans.empty();
  if (!orders && eviction->EvictedAt(prompt_tokens, tokens) == 0)
    return std::optional<KvEviction>();
  return eviction;
}

void KvEvictions::Describe(v1::WorkerState* state) const {
  for (const std::string& method : methods_) state->add_kv_evictions(method);
}

}  // namespace penstock
