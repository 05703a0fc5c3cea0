#include "prefill_worker/prompt_eviction.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/eviction/kv_evictor.h"

namespace penstock {

PromptEviction::PromptEviction(const KvEviction& eviction, size_t prompt_tokens)
    : eviction_(eviction),
      prompt_tokens_(static_cast<int32_t>(prompt_tokens)),
      rule_(RuleOf(eviction)) {
  PENSTOCK_CHECK(evicted() > 0 || eviction.EvictsAnswer());
}

int32_t PromptEviction::EvictedAt(int32_t tokens) const {
  return static_cast<int32_t>(
      eviction_.EvictedAt(static_cast<uint32_t>(prompt_tokens_), static_cast<uint32_t>(tokens)));
}

bool PromptEviction::CompactsAt(int32_t end) const {
  return end > prompt_tokens_ && EvictedAt(end) > EvictedAt(end - 1);
}

void PromptEviction::TakeBlocks(std::vector<BlockRef> blocks) {
  blocks_ = std::move(blocks);
  for (const BlockRef& block : blocks_) table_.push_back(block.id());
}

bool PromptEviction::Observes(int32_t end) const {
  if (end > prompt_tokens_) return ObservedBehind(end) > 0;
  return end == prompt_tokens_ || rule_.sums;
}

int32_t PromptEviction::ObservedOf(int32_t end, int32_t tokens) const {
  if (end > prompt_tokens_) return std::min(tokens, ObservedBehind(end));
  return rule_.sums ? tokens : std::min(tokens, rule_.observed);
}

// The number of tokens before the answer's token `end` that its next compaction observes.
int32_t PromptEviction::ObservedBehind(int32_t end) const {
  if (!eviction_.EvictsAnswer()) return 0;
  const uint32_t next = eviction_.NextCompaction(static_cast<uint32_t>(prompt_tokens_),
                                                 static_cast<uint32_t>(end) - 1);
  const int32_t first = static_cast<int32_t>(next) - CompactionScores::Observed(eviction_);
  return std::max(0, end - first);
}

void PromptEviction::Observe(const EvictionAttention& attention, const PagedKv& kv,
                             const ObservedLayer& chunk) {
  if (chunk.end > prompt_tokens_) return ObserveAnswer(attention, kv, chunk);
  const KeyScoresArgs keys = Scores(attention, kv, chunk);
  if (rule_.sums) attention.evictor->AddAttention(keys);
  if (chunk.end < prompt_tokens_) return;
  EvictLayer(*attention.evictor, {.keys = keys, .rule = rule_.keep, .to = chunk.kept});
}

void PromptEviction::ObserveAnswer(const EvictionAttention& attention, const PagedKv& kv,
                                   const ObservedLayer& chunk) {
  const auto rows = static_cast<int32_t>(chunk.queries.dim(0));
  const int32_t observed = ObservedOf(chunk.end, rows);
  scores_.Add(attention, kv, eviction_,
              {.layer = chunk.layer,
               .blocks = table_,
               .tokens = chunk.end - EvictedAt(chunk.end - 1),
               .queries = {chunk.queries.row(rows - observed), {observed, chunk.queries.dim(1)}}});
}

void PromptEviction::Compact(const EvictionAttention& attention, const PagedKv& kv, int32_t end) {
  CompactKv(attention, kv,
            {.eviction = eviction_,
             .evicted = EvictedAt(end - 1),
             .from = table_,
             .to = table_,
             .scores = scores_});
}

KeyScoresArgs PromptEviction::Scores(const EvictionAttention& attention, const PagedKv& kv,
                                     const ObservedLayer& chunk) {
  const int64_t rows = chunk.queries.dim(0);
  // A prompt may be shorter than what is observed; then all of it is kept.
  const int64_t observed = rule_.sums ? rows : std::min(rule_.observed, prompt_tokens_);
  PENSTOCK_CHECK_GE(rows, observed);
  KeyScoresArgs keys{
      .scoring = rule_.scoring,
      .kv = kv,
      .layer = chunk.layer,
      .blocks = chunk.whole,
      .tokens = chunk.end,
      .queries = {chunk.queries.row(rows - observed), {observed, chunk.queries.dim(1)}},
      .heads = attention.heads,
      .scale = attention.scale,
      .cap = attention.cap,
      .scores = {}};
  if (!rule_.sums) return keys;
  const int64_t heads = kv.layout.kv_heads, one = heads * prompt_tokens_;
  sums_.resize(static_cast<size_t>(one * kv.layout.layers));
  keys.scores = {sums_.data() + chunk.layer * one, {heads, prompt_tokens_}};
  return keys;
}

}  // namespace penstock
