#pragma once

#include <algorithm>
#include <cstdint>

namespace penstock {

// What a worker's steps hold unless its flags say otherwise.
struct StepDefaults {
  uint32_t chunk_tokens = 512;  // of a prompt
  uint32_t max_batch = 64;      // sequences that are decoded
  uint32_t prefill_chunk = 64;  // tokens of a prompt beside these
};

// A GPU computes so many tokens in the time of a few: it waits for its memory until then.
constexpr StepDefaults StepDefaultsOn(bool gpus) {
  return gpus ? StepDefaults{.chunk_tokens = 2048, .max_batch = 256} : StepDefaults{};
}

// The flags that say how many tokens a worker's steps have.
struct StepLimits {
  uint32_t chunk_tokens = 0, max_batch = 0, prefill_chunk = 0;
  uint32_t draft_rows = 0;    // guesses that one decode step may check
  uint32_t again_tokens = 0;  // of sequences that are computed again, with evictions
};
constexpr uint32_t kDraftRows = 64;  // if a worker speculates; large batches have no use for more

// The maximum number of tokens in a step of either role.
constexpr uint32_t StepTokensMax(const StepLimits& limits) {
  return std::max(limits.chunk_tokens, limits.max_batch + limits.prefill_chunk + limits.draft_rows +
                                           limits.again_tokens);
}

}  // namespace penstock
