#include "worker/engine/kv_compaction.h"

#include "base/check.h"

namespace penstock {
namespace {

// SnapKV's window of queries, as its authors set it for long prompts, and their pooling by maxima.
// They pool over 7 tokens; a query attends to the first token of what it repeats, so a number of
// five tokens then loses its end. In `penstock eval kv` recall over 1,024 tokens with 128 kept is
// 0.15 with 7 and 0.98 with 9.
constexpr int32_t kSnapKvWindow = 32;
constexpr int64_t kSnapKvPool = 9;
static_assert(kSnapKvWindow <= kKeepTokensMin && kSinkTokens <= kKeepTokensMin);
static_assert(kSnapKvWindow == kObservedTokensMax);

EvictionRule RuleWithoutSpans(const KvEviction& eviction) {
  const int64_t keep = eviction.keep_tokens;
  switch (eviction.method) {
    case KvEvictionMethod::kSnapKv:
      return {.scoring = KeyScoring::kAttention,
              .keep = {.keep = keep, .last = kSnapKvWindow, .pool = kSnapKvPool},
              .observed = kSnapKvWindow};
    case KvEvictionMethod::kH2o:  // half of the budget for the recent tokens, as its authors do
      return {
          .scoring = KeyScoring::kGiven, .keep = {.keep = keep, .last = keep / 2}, .sums = true};
    case KvEvictionMethod::kTova:
      return {.scoring = KeyScoring::kLayerAttention, .keep = {.keep = keep, .last = 1}};
    case KvEvictionMethod::kKeyDiff:
      return {.scoring = KeyScoring::kKeyDifference, .keep = {.keep = keep}};
    case KvEvictionMethod::kKeyNorm:
      return {.scoring = KeyScoring::kKeyNorm, .keep = {.keep = keep}};
    case KvEvictionMethod::kStreaming:
      return {.scoring = KeyScoring::kNone,
              .keep = {.keep = keep, .first = kSinkTokens, .last = keep - kSinkTokens}};
    case KvEvictionMethod::kRandom:
      return {.scoring = KeyScoring::kRandom, .keep = {.keep = keep}};
  }
  return {};
}

}  // namespace

EvictionRule RuleOf(const KvEviction& eviction) {
  EvictionRule rule = RuleWithoutSpans(eviction);
  for (const TokenSpan& span : eviction.spans) {
    rule.keep.spans.push_back({.begin = span.begin, .end = span.end});
  }
  if (eviction.method == KvEvictionMethod::kStreaming) {
    rule.keep.last = rule.keep.keep - LeadingSlots(rule.keep);
  }
  return rule;
}

int32_t LastQueries::Needed(const KvEviction& eviction) {
  const EvictionRule rule = RuleWithoutSpans(eviction);
  const bool observes =
      rule.scoring == KeyScoring::kAttention || rule.scoring == KeyScoring::kLayerAttention;
  return observes ? rule.observed : 0;
}

void LastQueries::Take(int32_t layer, View<const float, 2> rows, int32_t most) {
  if (layers_.size() <= static_cast<size_t>(layer)) layers_.resize(static_cast<size_t>(layer) + 1);
  Layer& taken = layers_[static_cast<size_t>(layer)];
  taken.size = rows.dim(1);
  for (int64_t i = 0; i < rows.dim(0); ++i) {
    taken.rows.insert(taken.rows.end(), rows.row(i), rows.row(i) + taken.size);
  }
  const std::ptrdiff_t surplus = std::ssize(taken.rows) - most * taken.size;
  if (surplus > 0) taken.rows.erase(taken.rows.begin(), taken.rows.begin() + surplus);
}

View<const float, 2> LastQueries::of(int32_t layer) const {
  if (layers_.empty()) return {};
  const Layer& taken = layers_.at(static_cast<size_t>(layer));
  return {taken.rows.data(), {std::ssize(taken.rows) / taken.size, taken.size}};
}

void CompactKv(const EvictionAttention& attention, const PagedKv& kv,
               const Compaction& compaction) {
  const EvictionRule rule = RuleOf(compaction.eviction);
  const KeepRule keep = LaterRule(rule.keep);
  PENSTOCK_CHECK(EvictsWhileDecoding(compaction.eviction.method));
  // Evicted sequences have nothing in the layer for MTP, which has no queries either.
  const int32_t observed = LastQueries::Needed(compaction.eviction);
  const int32_t layers = observed > 0 ? compaction.queries.layers() : kv.layout.layers;
  PENSTOCK_CHECK_GT(layers, 0);
  for (int32_t layer = 0; layer < layers; ++layer) {
    if (observed > 0) PENSTOCK_CHECK_EQ(compaction.queries.of(layer).dim(0), observed);
    const KeyScoresArgs keys{.scoring = rule.scoring,
                             .kv = kv,
                             .layer = layer,
                             .blocks = compaction.from,
                             .tokens = compaction.eviction.limit(),
                             .evicted = compaction.evicted,
                             .queries = compaction.queries.of(layer),
                             .heads = attention.heads,
                             .scale = attention.scale,
                             .cap = attention.cap,
                             .scores = {}};
    EvictLayer(*attention.evictor, {.keys = keys, .rule = keep, .to = compaction.to});
  }
}

}  // namespace penstock
