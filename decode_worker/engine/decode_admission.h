#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "decode_worker/engine/decode_engine.h"
#include "decode_worker/engine/swap_budget.h"
#include "kvstore/manager/kv_cache_manager.h"

namespace penstock {

// The blocks that a session needs. In a model with a window these are the blocks that it needs at
// once.
struct DecodeNeed {
  int64_t held_max = 0;    // leading blocks that may come from the cache
  int64_t blocks_now = 0;  // for its tokens and the first block of each answer
  int64_t blocks_max = 0;  // for its tokens and the longest answers
  int64_t received = 0;    // leading tokens whose KV is received or cached, not computed here
  int64_t rows = 0;        // at once, in a model with a window group
  bool exchanges = false;  // on its way it needs more, in the place of those that it passes
};

// A session with the KV of `tokens` tokens whose choices each answer at most `more` further tokens.
struct DecodeSpan {
  int64_t tokens = 0;
  int64_t more = 0;
  int64_t choices = 1;
  int64_t limit = 0;        // of the tokens that each choice holds; 0: it holds all
  int64_t step_tokens = 1;  // of one choice in one step, with guesses
  // The number of `tokens` that one step computes here; 0: their KV is received.
  int64_t chunk_tokens = 0;
};
DecodeNeed NeedOf(const KvLayout& layout, const DecodeSpan& span);

// The parts that decide about admission. Everything outlives every PendingAdmission.
struct AdmissionContext {
  const DecodeEngine& engine;
  KvCacheManager& cache;
  SwapBudget& swap_budget;
  KvLayout layout;
  int64_t blocks_total = 0;
  int64_t rows_total = 0;
  int64_t watermark = 0;     // blocks left to running sessions, so that they can grow
  int64_t step_tokens = 1;   // as in DecodeSpan
  int64_t chunk_tokens = 0;  // of prompts that are computed here
};

// The admission of one session: it first gets its blocks, then KV of the prompt is restored into
// them from lower tiers. One thread at a time.
class PendingAdmission {
 public:
  struct Admitted {
    CacheAdmission blocks;
    SwapReservation swap;   // empty: `blocks` cover the longest answers
    int64_t exchanges = 0;  // as in DecodeJob
  };

  PendingAdmission(const AdmissionContext& context, const DecodeNeed& need)
      : context_(context), need_(need) {}

  // Nullopt while there is no room, or while KV is being restored. `on_restored` is called on the
  // store's thread when the restore has ended.
  std::optional<Admitted> Try(const PromptBlocks& prompt, const std::function<void()>& on_restored);

 private:
  void TakeBlocks(const PromptBlocks& prompt, const std::function<void()>& on_restored);

  const AdmissionContext& context_;
  const DecodeNeed need_;
  std::optional<CacheAdmission> admission_;  // its KV may still be restored
  SwapReservation swap_;
};

}  // namespace penstock
