#pragma once

#include <cstdint>
#include <optional>

#include "kvstore/manager/kv_cache_manager.h"
#include "kvstore/names/kv_policy.h"
#include "model/forward/model_runner.h"

namespace penstock {

// How the tokens behind a request's prompt select pages; without a selection they do not.
PageSelection PageSelectionOf(const std::optional<KvSelection>& selection, int32_t block_tokens,
                              uint32_t prompt_tokens);

// Removes the names of the blocks that have KV of tokens that selected: exact KV of the same tokens
// has these names. All that is left may be in a cache.
void DropSelectedNames(PromptBlocks& prompt, const PageSelection& selection, int32_t block_tokens);

}  // namespace penstock
