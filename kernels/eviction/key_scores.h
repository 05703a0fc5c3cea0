#pragma once

#include <cstdint>
#include <span>

#include "kernels/device.h"
#include "kernels/paged_kv.h"
#include "kernels/view.h"

namespace penstock {

// How the keys of a sequence are scored for eviction: those with the highest scores stay.
enum class KeyScoring : uint8_t {
  // The attention of the observed queries, summed over them and the query heads of a KV head
  // (SnapKV, Li et al., arXiv 2404.14469).
  kAttention,
  // The same, summed over all heads, so that all KV heads of a layer keep the same tokens (TOVA,
  // Oren et al., arXiv 2401.06104, which observes the last query).
  kLayerAttention,
  // Less the cosine of the key and the mean of all normalised keys (KeyDiff, Park et al., arXiv
  // 2504.15364).
  kKeyDifference,
  // Less the key's norm (Devoto et al., arXiv 2406.11430).
  kKeyNorm,
  // A hash of layer, head, slot and `evicted`: what a method must be better than.
  kRandom,
  // Those that the caller has summed with AddAttention, of all queries so far (H2O, Zhang et al.,
  // arXiv 2306.14048).
  kGiven,
  // 0 for all: only KeepRule::first and last decide (StreamingLLM, Xiao et al., arXiv 2309.17453).
  kNone,
};

// True if a key's score comes of the keys in the pages. Otherwise ScoreKeys reads no page.
constexpr bool ReadsKeys(KeyScoring scoring) {
  return scoring != KeyScoring::kRandom && scoring != KeyScoring::kNone &&
         scoring != KeyScoring::kGiven;
}

// The room kernels/eviction decides which tokens' keys and values of a sequence stay when there is
// no room for all, and copies them. It works on pages and queries of one layer. It knows no model,
// no request and no owner of a page.
struct KeyScoresArgs {
  KeyScoring scoring = KeyScoring::kNone;
  PagedKv kv;
  int32_t layer = 0;
  std::span<const uint32_t> blocks;  // block table: it covers `tokens`
  int64_t tokens = 0;                // whose keys are in the pages, from slot 0 on
  int64_t evicted = 0;               // earlier tokens of the sequence without keys
  // Of the last queries.dim(0) of the tokens, [rows, at least heads * head_dim], as Attention takes
  // them. Used by the two scorings of attention only. No layer with a sliding window.
  View<const float, 2> queries;
  int32_t heads = 0;      // a multiple of the layout's kv_heads
  float scale = 1.0f;     // of attention scores, and
  float cap = 0;          // their cap, as in AttentionArgs
  View<float, 2> scores;  // out: [kv_heads, tokens]; for AddAttention, `tokens` or more
};

// Computes on the CPU. The scores do not depend on the number of threads, nor on the size of pages.
// Attention within the sequence is causal; the keys of the observed tokens are part of the softmax
// and get scores too.
void ScoreKeys(const Exec& exec, const KeyScoresArgs& args);

// Sets the scores of every head to the sum of all heads', as kLayerAttention does.
void ShareAmongHeads(const KeyScoresArgs& args);

// Adds the attention of args.queries to `scores`, as kAttention sums it. Whether the queries of a
// sequence come in one call or in several, in order, changes no bit of the sums.
void AddAttention(const Exec& exec, const KeyScoresArgs& args);

}  // namespace penstock
