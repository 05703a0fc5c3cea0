#pragma once

#include <absl/container/flat_hash_map.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kvstore/manager/block_events.h"
#include "kvstore/manager/block_tokens.h"
#include "worker/events/kv_event.h"

namespace penstock {

// Turns the block events that routers read into those of vLLM: it adds tokens, short hashes and the
// medium that a block leaves. A block is in one medium at a time, the fastest that has it.
//
// A block is announced when its parent is: indexes skip blocks whose parents they do not know, and
// lower tiers take the end of a prompt first. One thread.
class KvEventSource {
 public:
  static constexpr size_t kBlocksMax = 512;  // in one event

  // `tokens` outlives the source.
  KvEventSource(std::function<std::shared_ptr<BlockSubscriber>()> subscribe,
                const BlockTokens& tokens);

  // The next events in order; empty when there are none. The first one, and the first after changes
  // were lost, is KvBlocksCleared, and the events of all served blocks follow.
  std::vector<KvEvent> Take();

 private:
  struct Left {
    uint64_t hash = 0;
    KvMedium medium{};
  };
  struct Held {
    BlockId id;
    KvMedium medium{};
  };

  void Apply(const v1::BlockEvent& event);
  void Forget();  // announces that nothing is cached
  void Store(std::span<const BlockId> ids, KvMedium medium);
  void StoreOne(const BlockId& id, const std::optional<BlockTokens::Content>& content,
                KvMedium medium);
  void Announce(const BlockId& id, const std::optional<BlockTokens::Content>& content,
                KvMedium medium);
  void AnnounceChildrenOf(const BlockId& id);
  void Hold(const BlockId& id, const BlockId& parent, KvMedium medium);
  void ForgetHeld(const BlockId& id);
  KvBlocksStored& StoredFor(const std::optional<BlockTokens::Content>& content, KvMedium medium);
  void Remove(std::span<const BlockId> ids);
  void AddRemoved(const Left& left);
  void FlushLeft();

  const std::function<std::shared_ptr<BlockSubscriber>()> subscribe_;
  const BlockTokens& tokens_;
  std::shared_ptr<BlockSubscriber> subscriber_;
  absl::flat_hash_map<BlockId, KvMedium> media_;  // of every block that was announced
  // Blocks that wait for their parent, by their parent; and the parent of each.
  absl::flat_hash_map<BlockId, std::vector<Held>> held_;
  absl::flat_hash_map<BlockId, BlockId> parents_of_held_;
  std::vector<KvEvent> events_;
  BlockId last_;  // the last block of events_.back(), if that is a KvBlocksStored with tokens
  // Removals that follow the storing of the same blocks in `storing_`: an index must not forget a
  // block that is still here.
  std::vector<Left> left_;
  KvMedium storing_ = KvMedium::kGpu;
};

}  // namespace penstock
