#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "decode_worker/engine/decode_sequence.h"
#include "kvstore/tiers/tiered_store.h"

namespace penstock {

// A preempted session: its choices without pages, and the ticket of their KV in the store. Used by
// the engine thread; the store's thread writes only the result of a swap-in.
class SwappedSession {
 public:
  // Swaps the choices of one session out. RESOURCE_EXHAUSTED when the store has no room: then
  // `choices` are unchanged. The pages come free once the store has copied them.
  static absl::StatusOr<std::unique_ptr<SwappedSession>> SwapOut(
      std::vector<DecodeSequence>& choices, BlockPool& pool, TieredStore& store);

  int64_t blocks() const { return static_cast<int64_t>(blocks_); }  // for SwapIn
  const DecodeSession& session() const { return *choices_.front().session; }
  uint64_t first_id() const { return choices_.front().id; }
  std::span<const DecodeSequence> choices() const { return choices_; }
  // Further blocks to take: one for each choice, but at most the session's maximum.
  int64_t growth() const;

  bool swapping_in() const { return arrival_ != nullptr; }
  // Adds the growth() blocks.
  void GiveGrowth(BlockCredit growth) { choices_.front().session->growth.Merge(std::move(growth)); }
  // Starts to restore the KV into `pages`, of which there are blocks(). `on_arrived` is called on
  // the store's thread, and may come after this object's end.
  void SwapIn(std::vector<BlockRef> pages, TieredStore& store, std::function<void()> on_arrived);
  // True when all KV is in the pages, or the store has stopped.
  bool arrived() const;
  // The choices with their KV. UNAVAILABLE when the store stopped before it was restored.
  absl::StatusOr<std::vector<DecodeSequence>> TakeChoices();
  // The choices without their KV, to end them.
  std::vector<DecodeSequence> Abandon() { return std::move(choices_); }

 private:
  void SaveRows(std::span<const BlockRef> pages);
  void RestoreRows(std::span<const BlockRef> pages);
  std::vector<uint32_t> WithRows(std::span<const BlockRef> pages) const;  // their ids
  struct Arrival {
    Mutex mutex;
    std::optional<RestoreResult> result GUARDED_BY(mutex);
  };

  size_t blocks_ = 0;
  std::vector<bool> rows_;  // for each block, true if its row is to be held
  // The second copies of the blocks with rows, which the store does not take (KvLayout::span).
  PagedKv kv_;
  std::vector<std::byte> recent_;
  std::vector<DecodeSequence> choices_;
  // For each choice, the indices among the swapped blocks of those that its window has not passed.
  std::vector<std::vector<size_t>> places_;
  SwapTicket ticket_;
  std::shared_ptr<Arrival> arrival_;  // shared with the store's callback
};

}  // namespace penstock
