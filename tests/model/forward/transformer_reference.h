#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/weights/weights.h"

namespace penstock {

// An eviction behind the first `at` tokens: later tokens attend to those of them that were kept,
// and to each other.
struct ReferenceEviction {
  size_t at = 0;
  std::function<bool(int32_t layer, int64_t kv_head, size_t position)> kept;
};

// Of the tokens from position `from` on, each attends, in every layer but the first two, to
// `pages` pages of `page_tokens` tokens: the first, the last two, and of the others those with the
// greatest upper bound of query * key, summed over the query heads of a KV head (Quest).
struct ReferenceSelection {
  size_t pages = 0;
  size_t page_tokens = 0;
  size_t from = 0;
};

// The logits after the last of `tokens`, from a plain forward pass in double over the whole
// sequence: no cache, no batching. Keys and values are rounded to bf16 as pages hold them.
std::vector<double> ReferenceLogits(const Weights& weights, std::span<const uint32_t> tokens,
                                    const ReferenceEviction* eviction = nullptr,
                                    const ReferenceSelection* selection = nullptr);

}  // namespace penstock
