#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/eviction/evict_layer.h"
#include "kvstore/cache/block_pool.h"
#include "kvstore/names/kv_policy.h"
#include "model/forward/model_runner.h"

namespace penstock {

// How an eviction chooses.
struct EvictionRule {
  KeyScoring scoring = KeyScoring::kNone;
  KeepRule keep;
  int32_t observed = 1;  // last tokens of the prompt whose queries the scoring takes
};
EvictionRule RuleOf(const KvEviction& eviction);

// The eviction of one prompt: behind its last token, the KV that stays is copied layer by layer to
// blocks of its own, while later layers are still being computed. The prompt's own blocks stay
// exact, so the cache keeps them. After a failover the answer so far follows: it is computed behind
// the eviction, as it was decoded. Used by the engine thread only.
class PromptEviction {
 public:
  PromptEviction(const KvEviction& eviction, size_t prompt_tokens);

  int32_t prompt_tokens() const { return prompt_tokens_; }
  int32_t evicted() const { return prompt_tokens_ - kept(); }
  int32_t kept() const { return static_cast<int32_t>(rule_.keep.keep); }
  // The last tokens of the prompt that must be computed in one step.
  int32_t observed() const { return rule_.observed; }

  // `blocks` hold what stays of the prompt, and what follows it.
  void TakeBlocks(std::vector<BlockRef> blocks);
  std::span<const BlockRef> blocks() const { return blocks_; }
  std::span<const uint32_t> table() const { return table_; }

  // Copies what stays of one layer. `whole` is the prompt's block table; `queries` are those of its
  // last observed() tokens.
  void EvictLayer(const EvictionAttention& attention, const PagedKv& kv, int32_t layer,
                  std::span<const uint32_t> whole, View<const float, 2> queries) const;

 private:
  const int32_t prompt_tokens_;
  const EvictionRule rule_;
  std::vector<BlockRef> blocks_;
  std::vector<uint32_t> table_;
};

}  // namespace penstock
