#pragma once

#include <absl/container/flat_hash_map.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvstore/block_hash.h"
#include "kvstore/block_pool.h"
#include "kvstore/prefix_cache.h"
#include "kvstore/tiered_store.h"
#include "worker/block_events.h"

namespace penstock {

// The names of a prompt's blocks, under the namespace it belongs to.
struct PromptBlocks {
  BlockId root;
  std::vector<BlockId> ids;  // of the full blocks
  BlockId whole;             // of all tokens, a partial tail too: equal only for equal prompts
};

// What a request was given.
struct CacheAdmission {
  CacheAccess access;          // for Insert
  std::vector<BlockRef> held;  // the leading blocks, whose KV is there
  BlockCredit credit;          // for the rest
};

// A worker's prefix cache over its block pool, and with it all decisions about who gets blocks.
// Any thread; every call is short: a decode worker admits on the threads that bring its calls, its
// engine takes blocks for answers, and routers ask what there is.
class WorkerCache final : private PrefixCacheObserver {
 public:
  struct Options {
    std::string policy = "cost";
    uint64_t model_fingerprint = 0;
    std::string kv_format;  // of the pages
    // Shares of the pool that pins may keep from other prefixes, in all and of one tenant.
    double pinned_share = 0.5;
    double pinned_share_of_tenant = 0.25;
  };

  // `pool` and `clock` outlive the cache. INVALID_ARGUMENT for an unknown policy.
  static absl::StatusOr<std::unique_ptr<WorkerCache>> Create(BlockPool& pool, const Clock& clock,
                                                             Options options);

  // Hashes every token: not for the engine's thread when prompts are long.
  PromptBlocks NameBlocks(std::string_view cache_salt, std::span<const uint32_t> tokens) const;
  // The blocks that follow `parent`, for the full blocks of `tokens`.
  std::vector<BlockId> NameMore(const BlockId& parent, std::span<const uint32_t> tokens) const;

  // Up to `held_most` leading blocks of the prompt that are here, and room for the others of
  // `blocks`, evicting what nobody uses. Nothing while there is no room, or when fewer than `left`
  // blocks would be left to others.
  std::optional<CacheAdmission> Admit(const PromptBlocks& prompt, int64_t held_most, int64_t blocks,
                                      int64_t left = 0) EXCLUDES(mutex_);
  // Room for `blocks` more, evicting what nobody uses; nothing while there is none.
  std::optional<BlockCredit> Reserve(int64_t blocks) EXCLUDES(mutex_);

  // blocks[i] holds the KV of the prompt's i-th full block; it is found from now on. Where the same
  // KV is here already, blocks[i] becomes that page.
  void Insert(const CacheAccess& access, const BlockId& root, std::span<const BlockId> ids,
              std::span<BlockRef> blocks) EXCLUDES(mutex_);

  // The tiers below, which outlive every call but AttachStore(nullptr), with which they end.
  // Evicted blocks are offered to them; what they say they serve (OnStoreEvent, for
  // TieredStore::Open) is announced.
  void AttachStore(TieredStore* store) EXCLUDES(mutex_);
  void OnStoreEvent(const BlockEvent& event) EXCLUDES(mutex_);

  // What can be served now, then every change.
  std::shared_ptr<BlockSubscriber> Subscribe() EXCLUDES(mutex_);

  PrefixCacheCounts counts() const EXCLUDES(mutex_);

 private:
  struct Below {  // a block that a lower tier serves
    BlockId parent;
    Tier tier = Tier::kDram;
  };

  WorkerCache(BlockPool& pool, const Clock& clock, Options options,
              std::unique_ptr<CachePolicy> policy);
  // Within calls of cache_, so with the lock held, which the analysis does not see.
  void OnStored(const BlockId& parent,
                std::span<const BlockId> ids) override ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void OnEvicted(const BlockId& parent, std::span<const BlockId> ids,
                 std::span<const BlockRef> pages,
                 uint32_t uses) override ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void AnnounceStored(const BlockId& parent, std::span<const BlockId> ids) REQUIRES(mutex_);
  void OfferToStore(const BlockId& parent, std::span<const BlockId> ids,
                    std::span<const BlockRef> pages, uint32_t uses) REQUIRES(mutex_);
  void AnnounceEvicted(std::span<const BlockId> ids) REQUIRES(mutex_);

  BlockPool& pool_;
  const Clock& clock_;
  const Options options_;
  mutable Mutex mutex_;
  TieredStore* store_ GUARDED_BY(mutex_) = nullptr;
  absl::flat_hash_map<BlockId, Below> below_ GUARDED_BY(mutex_);
  BlockFeed feed_ GUARDED_BY(mutex_);
  PrefixCache cache_ GUARDED_BY(mutex_);
};

}  // namespace penstock
