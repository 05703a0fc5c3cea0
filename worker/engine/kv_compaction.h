#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/eviction/evict_layer.h"
#include "kvstore/names/kv_policy.h"
#include "model/forward/model_runner.h"

namespace penstock {

// How an eviction chooses.
struct EvictionRule {
  KeyScoring scoring = KeyScoring::kNone;
  KeepRule keep;
  int32_t observed = 1;  // last tokens whose queries the scoring takes at once
  bool sums = false;  // the attention of all queries is summed, and no prefix may come from a cache
};
// That of a prompt.
EvictionRule RuleOf(const KvEviction& eviction);
// That of a compaction while decoding. H2O observes the tokens since the last compaction only.
EvictionRule CompactionRuleOf(const KvEviction& eviction);

// Queries of one layer, and the keys that they score.
struct CompactionQueries {
  int32_t layer = 0;
  std::span<const uint32_t> blocks;  // the sequence's block table: it covers `tokens`
  int64_t tokens = 0;                // whose keys are in the pages, from slot 0 on
  View<const float, 2> queries;      // of the last of them, as StepArgs::on_queries gives them
};

// The scores of a sequence's keys for its next compaction, in host memory: the attention of the
// last tokens before it, which is added up when they are computed. Empty for methods that score
// without queries.
class CompactionScores {
 public:
  // The number of last tokens before a compaction of `eviction` whose queries are added.
  static int32_t Observed(const KvEviction& eviction);
  // Adds the attention of further tokens, in their order. Whether they come in one call or in
  // several changes no bit.
  void Add(const EvictionAttention& attention, const PagedKv& kv, const KvEviction& eviction,
           const CompactionQueries& added);
  void Clear() { layers_.clear(); }
  int32_t layers() const { return static_cast<int32_t>(layers_.size()); }
  int32_t observed(int32_t layer) const {  // tokens that were added
    return layers_.at(static_cast<size_t>(layer)).observed;
  }
  View<float, 2> of(int32_t layer);  // [kv_heads][eviction.limit()]

 private:
  struct Layer {
    int64_t heads = 0;
    int32_t observed = 0;
    std::vector<float> sums;
  };
  std::vector<Layer> layers_;
};

// The compaction of one sequence that holds eviction.limit() tokens to eviction.keep_tokens, in all
// layers. The scores are those of what it holds now. The workers do the same arithmetic on the same
// bits, so a sequence that is decoded elsewhere keeps the same tokens.
struct Compaction {
  KvEviction eviction;
  int64_t evicted = 0;             // tokens whose KV was dropped before
  std::span<const uint32_t> from;  // the sequence's block table
  // That of the result: for each index either the same block as in `from`, which is written in
  // place, or a block that is not in `from`.
  std::span<const uint32_t> to;
  CompactionScores& scores;  // used up
};
void CompactKv(const EvictionAttention& attention, const PagedKv& kv, const Compaction& compaction);

}  // namespace penstock
