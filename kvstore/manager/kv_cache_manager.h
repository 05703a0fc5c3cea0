#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvstore/cache/block_pool.h"
#include "kvstore/cache/prefix_cache.h"
#include "kvstore/manager/block_events.h"
#include "kvstore/names/block_hash.h"
#include "kvstore/tiers/tiered_store.h"

namespace penstock {

// The names of a prompt's blocks, under the namespace it belongs to.
struct PromptBlocks {
  BlockId root;
  std::vector<BlockId> ids;  // of the full blocks
  BlockId whole;             // of all tokens, a partial tail too: equal only for equal prompts
};

// Leading blocks on their way up from a lower tier. Any thread.
class CacheRestore {
 public:
  explicit CacheRestore(size_t asked) : asked_(asked) {}
  size_t asked() const { return asked_; }
  void Finish(RestoreResult result) EXCLUDES(mutex_);
  std::optional<RestoreResult> Take() EXCLUDES(mutex_);  // once it is finished

 private:
  const size_t asked_;  // blocks
  Mutex mutex_;
  std::optional<RestoreResult> result_ GUARDED_BY(mutex_);
};

// What a request wants of the cache and the pool.
struct CacheRequest {
  int64_t held_max = 0;  // leading blocks that may be had from the cache or the tiers below it
  int64_t blocks = 0;    // in all
  int64_t left = 0;      // that must be left to others
  // Blocks that were restored can be taken, see FinishRestore. On the store's thread, without
  // locks.
  std::function<void()> on_restored = {};
};

// What a request was given.
struct CacheAdmission {
  CacheAccess access;                               // for Insert
  std::vector<BlockRef> held;                       // the leading blocks, whose KV is there
  BlockCredit credit;                               // for the rest
  std::shared_ptr<CacheRestore> restore = nullptr;  // on its way, behind `held`
};

// The full blocks of a prompt's first `tokens` should stay for so long.
struct PrefixPin {
  uint32_t tokens = 0;
  Duration ttl{};
};

struct WorkerCacheStats {
  PrefixCacheCounts device;
  int64_t blocks = 0;  // on the device, now
  // Blocks of admitted prompts that neither the tier nor a better one had: device, DRAM, NVMe.
  std::array<uint64_t, 3> missed{};
};

// A worker's prefix cache over its block pool, and with it all decisions about who gets blocks.
// Any thread; every call is short: a decode worker admits on the threads that bring its calls, its
// engine takes blocks for answers, and routers ask what there is.
class KvCacheManager final : private PrefixCacheObserver {
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
  static absl::StatusOr<std::unique_ptr<KvCacheManager>> Create(BlockPool& pool, const Clock& clock,
                                                                Options options);

  // Hashes every token: not for the engine's thread when prompts are long. `provenance`: see
  // BlockNamespace; KV that is not exact has one.
  PromptBlocks NameBlocks(std::string_view cache_salt, std::span<const uint32_t> tokens,
                          std::string_view provenance = "") const;
  // The blocks that follow `parent`, for the full blocks of `tokens`.
  std::vector<BlockId> NameMore(const BlockId& parent, std::span<const uint32_t> tokens) const;

  // Leading blocks of the prompt that are here, and room for the others, evicting what nobody uses.
  // What tiers below have of the rest is on its way into part of that room. Nothing while there is
  // no room, or too little would be left.
  std::optional<CacheAdmission> Admit(const PromptBlocks& prompt, const CacheRequest& wish)
      EXCLUDES(mutex_);
  // False while something is on its way. Then `held` has what was restored, and others find it. A
  // page that a slow disk may still write into is replaced; when there is no room for that,
  // everything is given back and `admission` is empty: to be asked for again, as holding what is
  // not enough could keep others from ever ending.
  bool FinishRestore(const PromptBlocks& prompt, std::optional<CacheAdmission>& admission)
      EXCLUDES(mutex_);
  // Whether a lower tier has blocks of the prompt that the device has not.
  bool HasBelow(const PromptBlocks& prompt, int64_t held_max) const EXCLUDES(mutex_);
  // Leading blocks of the prompt that Admit would find, in whatever tier. Not a use.
  int64_t CountLeading(const PromptBlocks& prompt) const EXCLUDES(mutex_);
  // Calls `on_freed` once, on a thread of the pool and without locks, when blocks have come free
  // since freed_count() was `seen`. A request that reads the count before Admit, and is given
  // nothing, misses no block that comes free.
  uint64_t freed_count() const { return pool_.freed().count(); }
  [[nodiscard]] FreedWaiters::Wait WhenFreed(uint64_t seen, std::function<void()> on_freed) {
    return pool_.freed().WhenFreed(seen, std::move(on_freed));
  }
  // Room for `blocks` more, evicting what nobody uses; nothing while there is none. What is evicted
  // comes free only when a lower tier has its copy, so `ahead` more blocks, pinned ones aside, are
  // sent on their way: as many as others may take meanwhile.
  std::optional<BlockCredit> Reserve(int64_t blocks, int64_t ahead = 0) EXCLUDES(mutex_);

  // blocks[i] holds the KV of the prompt's i-th full block; it is found from now on. Where the same
  // KV is here already, blocks[i] becomes that page.
  void Insert(const CacheAccess& access, const BlockId& root, std::span<const BlockId> ids,
              std::span<BlockRef> blocks) EXCLUDES(mutex_);

  // Pins what is here of the prompt's prefixes, as far as the shares go. Returns the most leading
  // tokens that are pinned now.
  int64_t Pin(const PromptBlocks& prompt, std::span<const PrefixPin> pins) EXCLUDES(mutex_);

  // The tiers below, which outlive every call but AttachStore(nullptr), with which they end.
  // Evicted blocks are offered to them; what they say they serve (OnStoreEvent, for
  // TieredStore::Open) is announced.
  void AttachStore(TieredStore* store) EXCLUDES(mutex_);
  void OnStoreEvent(const BlockEvent& event) EXCLUDES(mutex_);

  // What can be served now, then every change.
  std::shared_ptr<BlockSubscriber> Subscribe() EXCLUDES(mutex_);

  // Forgets what nobody uses, without offering it to the tiers below. Returns how many blocks.
  int64_t Clear() EXCLUDES(mutex_);

  WorkerCacheStats stats() const EXCLUDES(mutex_);

 private:
  struct Below {  // a block that a lower tier serves
    BlockId parent;
    Tier tier = Tier::kDram;
  };

  KvCacheManager(BlockPool& pool, const Clock& clock, Options options,
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
  std::optional<BlockCredit> ReserveLocked(int64_t blocks, int64_t ahead) REQUIRES(mutex_);
  void StartRestore(std::span<const BlockId> ids, const std::function<void()>& on_restored,
                    CacheAdmission* admission) REQUIRES(mutex_);

  BlockPool& pool_;
  const Clock& clock_;
  const Options options_;
  mutable Mutex mutex_;
  TieredStore* store_ GUARDED_BY(mutex_) = nullptr;
  absl::flat_hash_map<BlockId, Below> below_ GUARDED_BY(mutex_);
  BlockFeed feed_ GUARDED_BY(mutex_);
  PrefixCache cache_ GUARDED_BY(mutex_);
  bool clearing_ GUARDED_BY(mutex_) = false;
  std::array<uint64_t, 3> missed_ GUARDED_BY(mutex_){};
};

}  // namespace penstock
