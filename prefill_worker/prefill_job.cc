#include "prefill_worker/prefill_job.h"

#include <algorithm>

#include "prefill_worker/prompt_eviction.h"

namespace penstock {

int64_t PrefillJob::Blocks(const KvLayout& layout, int32_t chunk_tokens) const {
  const auto all = static_cast<int64_t>(tokens.size());
  if (!eviction) return layout.BlocksAtOnce(all, chunk_tokens);
  const int64_t held =
      eviction->HeldMax(static_cast<uint32_t>(prompt_tokens), static_cast<uint32_t>(tokens.size()));
  return layout.BlocksFor(static_cast<int64_t>(prompt_tokens)) + layout.BlocksFor(held);
}

bool PrefillJob::Exchanges(const KvLayout& layout, int32_t chunk_tokens) const {
  return !eviction &&
         Blocks(layout, chunk_tokens) < layout.BlocksFor(static_cast<int64_t>(tokens.size()));
}

// The last token is never taken from the cache, because its logits are needed; scores need those of
// all tokens, a mean their hidden states, and an eviction the queries of those that it observes.
int64_t PrefillJob::CachedBlocksMax(const KvLayout& layout) const {
  if (score_top || hidden_mean) return 0;
  if (!eviction) {
    const int64_t most = (static_cast<int64_t>(tokens.size()) - 1) / layout.block_tokens;
    return std::min(most, std::ssize(prompt.ids));
  }
  const EvictionRule rule = RuleOf(*eviction);
  if (rule.sums) return 0;
  const int64_t before = static_cast<int64_t>(prompt_tokens) - rule.observed;
  return std::max<int64_t>(before, 0) / layout.block_tokens;
}

}  // namespace penstock
