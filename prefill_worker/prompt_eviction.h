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
  int32_t observed = 1;  // last tokens of the prompt whose queries the scoring takes at once
  bool sums = false;  // the attention of all queries is summed, and no prefix may come from a cache
};
EvictionRule RuleOf(const KvEviction& eviction);

// One layer of a chunk of a prompt, when the pages have its keys.
struct ObservedLayer {
  int32_t layer = 0;
  int32_t end = 0;                  // of the chunk, in tokens of the prompt
  std::span<const uint32_t> whole;  // the prompt's block table
  std::span<const uint32_t> kept;   // that of what stays of the prompt
  View<const float, 2> queries;     // of the chunk's tokens
};

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

  // True if a chunk that ends with the prompt's token `end` must be shown to Observe.
  bool Observes(int32_t end) const;
  // Takes the queries of a chunk. With the last one, copies what stays of the layer.
  void Observe(const EvictionAttention& attention, const PagedKv& kv, const ObservedLayer& chunk);

 private:
  KeyScoresArgs Scores(const EvictionAttention& attention, const PagedKv& kv,
                       const ObservedLayer& chunk);

  const int32_t prompt_tokens_;
  const EvictionRule rule_;
  std::vector<BlockRef> blocks_;
  std::vector<uint32_t> table_;
  std::vector<float> sums_;  // [layers][kv_heads][prompt tokens], of EvictionRule::sums
};

}  // namespace penstock
