#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "decode_worker/decode_engine.h"
#include "decode_worker/swap_budget.h"
#include "kvstore/manager/kv_cache_manager.h"

namespace penstock {

// What a session needs of the pool, in blocks.
struct DecodeNeed {
  int64_t tokens = 0;      // that it starts from
  int64_t blocks_now = 0;  // for those, and for the first block of each answer
  int64_t blocks_max = 0;  // for those, and for the longest answers
};

// Of a session with `tokens`, when each of its choices answers at most `more` further ones.
DecodeNeed NeedOf(const KvLayout& layout, int64_t tokens, int64_t more, int64_t choices);

// What decides who enters a decode worker; all of it outlives every PendingAdmission.
struct AdmissionContext {
  const DecodeEngine& engine;
  KvCacheManager& cache;
  SwapBudget& swap_budget;
  KvLayout layout;
  int64_t blocks_total = 0;
  int64_t watermark = 0;  // blocks that are left to the sessions that are here, to grow
};

// One session before it has its blocks. Blocks first, then what a lower tier has of the prompt
// comes into them. One thread at a time.
class PendingAdmission {
 public:
  struct Admitted {
    CacheAdmission blocks;
    SwapReservation swap;  // empty: `blocks` are all that it will ever need
  };

  PendingAdmission(const AdmissionContext& door, const DecodeNeed& need)
      : door_(door), need_(need) {}

  // Nothing while there is no room, or KV is on its way. When that has come, `on_restored` is
  // called, on the store's thread.
  std::optional<Admitted> Try(const PromptBlocks& prompt, const std::function<void()>& on_restored);

 private:
  void TakeBlocks(const PromptBlocks& prompt, const std::function<void()>& on_restored);

  const AdmissionContext& door_;
  const DecodeNeed need_;
  std::optional<CacheAdmission> admission_;  // some of it perhaps on its way
  SwapReservation swap_;
};

}  // namespace penstock
