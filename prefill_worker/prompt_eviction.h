#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvstore/cache/block_pool.h"
#include "kvstore/names/kv_policy.h"
#include "model/forward/model_runner.h"
#include "worker/engine/kv_compaction.h"

namespace penstock {

// One layer of a chunk of a prompt, when the pages have its keys.
struct ObservedLayer {
  int32_t layer = 0;
  int32_t end = 0;                  // of the chunk, in tokens of the prompt and the answer
  std::span<const uint32_t> whole;  // the prompt's block table
  std::span<const uint32_t> kept;   // that of what stays of the prompt
  View<const float, 2> queries;     // of the chunk's tokens
};

// The eviction of one prompt: behind its last token, the KV that stays is copied layer by layer to
// blocks of its own, while later layers are still being computed. The prompt's own blocks stay
// exact, so the cache keeps them. After a failover the answer so far follows: it is computed behind
// the eviction, as it was decoded, and compacted where it was. A prompt that keeps all of its
// tokens is copied whole, because its answer is compacted. Used by the engine thread only.
class PromptEviction {
 public:
  PromptEviction(const KvEviction& eviction, size_t prompt_tokens);

  int32_t prompt_tokens() const { return prompt_tokens_; }
  int32_t evicted() const { return EvictedAt(prompt_tokens_); }
  int32_t kept() const { return prompt_tokens_ - evicted(); }
  // KvEviction::EvictedAt, of the prompt and the answer so far.
  int32_t EvictedAt(int32_t tokens) const;
  // True if the sequence is compacted behind its token `end`.
  bool CompactsAt(int32_t end) const;
  // The last tokens of the prompt, and before a compaction, that must be computed in one step.
  int32_t observed() const { return rule_.observed; }

  // `blocks` hold what stays of the prompt, and what follows it.
  void TakeBlocks(std::vector<BlockRef> blocks);
  std::span<const BlockRef> blocks() const { return blocks_; }
  std::span<const uint32_t> table() const { return table_; }

  // True if a chunk that ends with token `end` must be shown to Observe.
  bool Observes(int32_t end) const;
  // Of such a chunk, which has `tokens` tokens, the number of last ones whose queries are taken.
  int32_t ObservedOf(int32_t end, int32_t tokens) const;
  // Takes the queries of a chunk. With the prompt's last one, copies what stays of the layer.
  void Observe(const EvictionAttention& attention, const PagedKv& kv, const ObservedLayer& chunk);
  // Compacts the sequence behind its token `end`, when the step has ended.
  void Compact(const EvictionAttention& attention, const PagedKv& kv, int32_t end);

 private:
  int32_t ObservedBehind(int32_t end) const;
  void ObserveAnswer(const EvictionAttention& attention, const PagedKv& kv,
                     const ObservedLayer& chunk);
  KeyScoresArgs Scores(const EvictionAttention& attention, const PagedKv& kv,
                       const ObservedLayer& chunk);

  const KvEviction eviction_;
  const int32_t prompt_tokens_;
  const EvictionRule rule_;
  std::vector<BlockRef> blocks_;
  std::vector<uint32_t> table_;
  std::vector<float> sums_;  // [layers][kv_heads][prompt tokens], of EvictionRule::sums
  CompactionScores scores_;  // of the answer's next compaction
};

}  // namespace penstock
