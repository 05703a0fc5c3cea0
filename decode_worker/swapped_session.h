#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "decode_worker/decode_sequence.h"
#include "kvstore/tiers/tiered_store.h"

namespace penstock {

// A preempted session: its choices without pages, and where their KV is meanwhile. The engine
// thread's own, but for what the store leaves.
class SwappedSession {
 public:
  // Swaps the choices of one session out. RESOURCE_EXHAUSTED when the store has no room: then
  // `choices` are unchanged. The pages come free once the store has copied them.
  static absl::StatusOr<std::unique_ptr<SwappedSession>> SwapOut(
      std::vector<DecodeSequence>& choices, BlockPool& pool, TieredStore& store);

  int64_t blocks() const { return static_cast<int64_t>(blocks_); }  // that SwapIn takes
  const DecodeSession& session() const { return *choices_.front().session; }
  uint64_t first_id() const { return choices_.front().id; }
  // Blocks to take beside those: one for each choice, but never more than the session may need.
  int64_t growth() const;

  bool swapping_in() const { return arrival_ != nullptr; }
  // growth() blocks to go on with.
  void GiveGrowth(BlockCredit growth) { choices_.front().session->growth.Merge(std::move(growth)); }
  // Starts to bring the KV back, into `pages`: as many as blocks().
  void SwapIn(std::vector<BlockRef> pages, TieredStore& store);
  // All of it is here, or the store has stopped.
  bool arrived() const;
  // The choices, as they were. UNAVAILABLE when the store was stopped on the way.
  absl::StatusOr<std::vector<DecodeSequence>> TakeChoices();
  // Without their KV, to end them.
  std::vector<DecodeSequence> Abandon() { return std::move(choices_); }

 private:
  struct Arrival {
    Mutex mutex;
    std::optional<RestoreResult> result GUARDED_BY(mutex);
  };

  size_t blocks_ = 0;
  std::vector<DecodeSequence> choices_;
  std::vector<std::vector<size_t>> places_;  // of each choice's blocks among the swapped ones
  SwapTicket ticket_;
  std::shared_ptr<Arrival> arrival_;  // shared with the store's callback
};

}  // namespace penstock
