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
EvictionRule RuleOf(const KvEviction& eviction);

// The queries of a sequence's last tokens, kept until the sequence is compacted behind them. Empty
// for methods that score without queries.
class LastQueries {
 public:
  // The number of tokens whose queries a compaction of `eviction` needs.
  static int32_t Needed(const KvEviction& eviction);
  // Takes further tokens' rows of what StepArgs::on_queries gave for the layer, and keeps the last
  // `most` of all.
  void Take(int32_t layer, View<const float, 2> rows, int32_t most);
  void Clear() { layers_.clear(); }
  int32_t layers() const { return static_cast<int32_t>(layers_.size()); }
  View<const float, 2> of(int32_t layer) const;

 private:
  struct Layer {
    int64_t size = 0;         // of a row
    std::vector<float> rows;  // [tokens][size]
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
  const LastQueries& queries;
};
void CompactKv(const EvictionAttention& attention, const PagedKv& kv, const Compaction& compaction);

}  // namespace penstock
