#include "prefill_worker/prompt_eviction.h"

#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

// SnapKV's window of queries, as its authors set it for long prompts, and their pooling by maxima.
// They pool over 7 tokens; a query attends to the first token of what it repeats, so a number of
// five tokens then loses its end. In `penstock eval kv` recall over 1,024 tokens with 128 kept is
// 0.15 with 7 and 0.98 with 9.
constexpr int32_t kSnapKvWindow = 32;
constexpr int64_t kSnapKvPool = 9;
// The first tokens take much of every token's attention, whatever they say (StreamingLLM).
constexpr int64_t kSinkTokens = 4;

static_assert(kSnapKvWindow <= kKeepTokensMin && kSinkTokens <= kKeepTokensMin);
static_assert(kSnapKvWindow == kObservedTokensMax);

}  // namespace

EvictionRule RuleOf(const KvEviction& eviction) {
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

PromptEviction::PromptEviction(const KvEviction& eviction, size_t prompt_tokens)
    : prompt_tokens_(static_cast<int32_t>(prompt_tokens)), rule_(RuleOf(eviction)) {
  PENSTOCK_CHECK_GT(prompt_tokens_, rule_.keep.keep);
}

void PromptEviction::TakeBlocks(std::vector<BlockRef> blocks) {
  blocks_ = std::move(blocks);
  for (const BlockRef& block : blocks_) table_.push_back(block.id());
}

bool PromptEviction::Observes(int32_t end) const {
  return end == prompt_tokens_ || (rule_.sums && end < prompt_tokens_);
}

void PromptEviction::Observe(const EvictionAttention& attention, const PagedKv& kv,
                             const ObservedLayer& chunk) {
  PENSTOCK_CHECK_LE(chunk.end, prompt_tokens_);
  const KeyScoresArgs keys = Scores(attention, kv, chunk);
  if (rule_.sums) AddAttention(attention.exec, keys);
  if (chunk.end < prompt_tokens_) return;
  EvictLayer(attention.exec, {.keys = keys, .rule = rule_.keep, .to = chunk.kept});
}

KeyScoresArgs PromptEviction::Scores(const EvictionAttention& attention, const PagedKv& kv,
                                     const ObservedLayer& chunk) {
  const int64_t rows = chunk.queries.dim(0);
  const int64_t observed = rule_.sums ? rows : rule_.observed;
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
