#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvstore/cache/block_pool.h"
#include "kvstore/cache/prefix_cache.h"
#include "kvstore/manager/block_events.h"
#include "kvstore/manager/block_tokens.h"
#include "kvstore/names/block_hash.h"
#include "kvstore/tiers/tiered_store.h"

namespace penstock {

// The ids of a prompt's blocks within its namespace.
struct PromptBlocks {
  BlockId root;
  std::vector<BlockId> ids;  // of the full blocks
  BlockId whole;             // of all tokens with the partial tail; equal only for equal prompts
  std::string tenant = {};   // whose share of the cache they take: any id; empty: no tenant
  // Of the full blocks; empty unless the cache keeps tokens and the namespace is the shared one,
  // see KvCacheManager::Options.
  std::vector<uint32_t> tokens = {};
};

// A restore of leading blocks from lower tiers, which the store finishes and the engine takes. Any
// thread.
class CacheRestore {
 public:
  explicit CacheRestore(size_t asked) : asked_(asked) {}
  // The number of blocks that the restore was asked for.
  size_t asked() const { return asked_; }
  void Finish(RestoreResult result) EXCLUDES(mutex_);
  std::optional<RestoreResult> Take() EXCLUDES(mutex_);  // nullopt until it is finished

 private:
  const size_t asked_;  // blocks
  Mutex mutex_;
  std::optional<RestoreResult> result_ GUARDED_BY(mutex_);
};

// A request's needs of the cache and the pool, in blocks.
struct CacheRequest {
  int64_t held_max = 0;  // leading blocks that may come from the cache or the lower tiers
  // At once. A sequence with a window that needs more on its way gives up those that its window has
  // passed (KvCacheManager::Exchange).
  int64_t blocks = 0;
  bool exchanges = false;
  // Leading tokens that are not computed here, wherever their KV comes from. With a window, blocks
  // that no token behind them sees are not taken.
  int64_t received = 0;
  // That the request holds at once in a model with a window group (KvLayout::RowsAtOnce).
  int64_t rows = 0;
  int64_t left = 0;       // free blocks that must remain for others
  int64_t rows_left = 0;  // likewise rows
  // Called when restored blocks can be taken with FinishRestore; on the store's thread, without
  // locks.
  std::function<void()> on_restored = {};
};

// The blocks granted to a request.
struct CacheAdmission {
  CacheAccess access;  // for Insert
  // The leading blocks, whose KV is present. References to those that the window has passed are
  // empty. They hold the rows that the next token sees.
  std::vector<BlockRef> held;
  BlockCredit credit;  // the right to the other blocks, and to the rows
  std::shared_ptr<CacheRestore> restore = nullptr;  // a restore of the blocks after `held`
  int64_t received = 0;                             // as in the request
};

// The full blocks of a prompt's first `tokens` tokens should stay cached for `ttl`.
struct PrefixPin {
  uint32_t tokens = 0;
  Duration ttl{};
};

// A request's pins.
struct PrefixPins {
  std::string tenant;  // whose quota pays, see PrefixCache::PinTerms
  std::vector<PrefixPin> pins;
};

struct WorkerCacheStats {
  PrefixCacheCounts device;
  int64_t blocks = 0;  // on the device, now
  // Blocks of admitted prompts that a tier and all faster tiers missed, in the order device, DRAM,
  // NVMe.
  std::array<uint64_t, 3> missed{};
};

class KvCacheManager;

// Blocks that a sequence may hold, has given up for others, and could not get yet. Must not outlive
// its manager.
class OwedBlocks {
 public:
  OwedBlocks() = default;
  OwedBlocks(OwedBlocks&& other) noexcept
      : manager_(std::exchange(other.manager_, nullptr)),
        blocks_(std::exchange(other.blocks_, 0)) {}
  OwedBlocks& operator=(OwedBlocks&& other) noexcept {
    std::swap(manager_, other.manager_);
    std::swap(blocks_, other.blocks_);
    return *this;
  }
  ~OwedBlocks();
  int64_t blocks() const { return blocks_; }

 private:
  friend class KvCacheManager;
  KvCacheManager* manager_ = nullptr;
  int64_t blocks_ = 0;
};

// This room joins the cache and the tiers: it answers "which blocks may this request have?" and
// reports changes to routers. It knows pool, prefix cache and tiered store, but not engines,
// schedulers, RPC or wires.

// KvCacheManager is a worker's prefix cache over its block pool, and takes all decisions about the
// allocation of blocks. Any thread; every call is short. A decode worker admits on its RPC threads,
// its engine reserves blocks for answers, and routers read events.
class KvCacheManager final : private PrefixCacheObserver {
 public:
  struct Options {
    // Keep blocks for later requests, and find those that are kept. Otherwise Insert keeps nothing,
    // and Admit finds nothing in any tier.
    bool keeps_blocks = true;
    // One of kCachePolicies.
    std::string policy = "cost";
    uint64_t model_fingerprint = 0;
    std::string kv_format;  // format of the pages
    // The shares of the pool that may be pinned, in all and by one tenant.
    double pinned_share = 0.5;
    double pinned_share_of_tenant = 0.25;
    // Keep the tokens of served blocks for tokens(). Only those of the namespace without a salt and
    // without lossy KV: others cannot use the rest, and its tokens are its tenants'.
    bool keep_tokens = false;
  };

  // `pool` and `clock` outlive the manager. INVALID_ARGUMENT for an unknown policy.
  static absl::StatusOr<std::unique_ptr<KvCacheManager>> Create(BlockPool& pool, const Clock& clock,
                                                                Options options);

  // Hashes every token, so the engine's thread must not call it for long prompts. `provenance` is
  // that of BlockNamespace; it is empty for exact KV.
  PromptBlocks NameBlocks(std::string_view cache_salt, std::span<const uint32_t> tokens,
                          std::string_view provenance = "") const;
  // Appends the full blocks of `tokens`, which follow the prompt's full blocks.
  void Extend(PromptBlocks& prompt, std::span<const uint32_t> tokens) const;

  // Grants the prompt's cached leading blocks and credit for the others, evicting unused blocks as
  // needed. Starts restoring the next blocks from lower tiers into part of that credit. nullopt
  // when there is no room, or when fewer than the request's `left` blocks would remain.
  std::optional<CacheAdmission> Admit(const PromptBlocks& prompt, const CacheRequest& request)
      EXCLUDES(mutex_);
  // False while the restore runs. Afterwards `held` includes the restored blocks, and other
  // requests find them. Pages that a slow disk may still write are replaced. If there is no room
  // for the replacement, everything is given back and `admission` is empty: the caller must call
  // Admit again, because keeping a partial allocation could deadlock with other requests.
  bool FinishRestore(const PromptBlocks& prompt, std::optional<CacheAdmission>& admission)
      EXCLUDES(mutex_);
  // True when a lower tier has blocks of the prompt that the device lacks.
  bool HasInLowerTier(const PromptBlocks& prompt, int64_t held_max) const EXCLUDES(mutex_);
  bool keeps_blocks() const { return options_.keeps_blocks; }
  // The number of leading blocks that Admit would find in any tier. Does not count as a use.
  int64_t CountLeading(const PromptBlocks& prompt) const EXCLUDES(mutex_);
  // Calls `on_freed` once, on a thread of the pool and without locks, when blocks have come free
  // since freed_count() was `seen`. A request that reads the count before Admit, and is given
  // nothing, misses no block that comes free.
  uint64_t freed_count() const { return pool_.freed().count(); }
  [[nodiscard]] FreedWaiters::Wait WhenFreed(uint64_t seen, std::function<void()> on_freed) {
    return pool_.freed().WhenFreed(seen, std::move(on_freed));
  }
  // Reserves `blocks` blocks, evicting unused ones; nullopt while there is no room. An evicted
  // block becomes free only after a lower tier has copied it, so `ahead` more blocks (never pinned
  // ones) are evicted in advance for later calls.
  std::optional<BlockCredit> Reserve(int64_t blocks, int64_t ahead = 0) EXCLUDES(mutex_);

  // Gives up `passed`, blocks that a sequence's window has passed, and tries to fill its credit up
  // to `credit_wanted` blocks. The missing blocks come free when others give them up, too, or when
  // a lower tier has copied them: until then `owed` keeps them from being granted to new requests.
  void Exchange(std::vector<BlockRef> passed, int64_t credit_wanted, BlockCredit& credit,
                OwedBlocks& owed) EXCLUDES(mutex_);

  // blocks[i] holds the KV of the prompt's i-th full block, which look-ups find from now on. If the
  // same KV is cached already, blocks[i] is replaced by that page, except in a model with a window.
  // Leading references may be empty; if the cache has lost one of those blocks, nothing is stored.
  void Insert(const CacheAccess& access, const PromptBlocks& prompt, std::span<BlockRef> blocks)
      EXCLUDES(mutex_);

  // Pins the cached blocks of the prompt's prefixes within the configured shares. Returns the
  // largest number of leading tokens that are pinned.
  int64_t Pin(const PromptBlocks& prompt, const PrefixPins& pins) EXCLUDES(mutex_);

  // Sets the lower tiers, which must stay valid until AttachStore(nullptr). Evicted blocks are
  // offered to them. The store reports the blocks that it serves through OnStoreEvent (see
  // TieredStore::Open), and readers are told.
  void AttachStore(TieredStore* store) EXCLUDES(mutex_);
  void OnStoreEvent(const BlockEvent& event) EXCLUDES(mutex_);

  // A reader of a snapshot of all served blocks, followed by every change.
  std::shared_ptr<BlockSubscriber> Subscribe() EXCLUDES(mutex_);
  // The tokens of the served blocks; null unless Options::keep_tokens is set.
  const BlockTokens* tokens() const { return tokens_.get(); }

  // Evicts all unused blocks without offering them to lower tiers. Returns their number.
  int64_t Clear() EXCLUDES(mutex_);

  WorkerCacheStats stats() const EXCLUDES(mutex_);

 private:
  struct LowerTierEntry {  // a block that a lower tier serves
    BlockId parent;
    Tier tier = Tier::kDram;
  };

  KvCacheManager(BlockPool& pool, const Clock& clock, Options options,
                 std::unique_ptr<CachePolicy> policy);
  bool KeepsTokensOf(const PromptBlocks& prompt) const {
    return tokens_ != nullptr && prompt.root == shared_root_;
  }
  // Called within calls of cache_, so mutex_ is held, which the thread-safety analysis cannot see.
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
  friend class OwedBlocks;
  void Forgive(int64_t owed) EXCLUDES(mutex_);
  FindResult FindBelow(std::span<const BlockId> ids) const REQUIRES(mutex_);
  void CountMissed(size_t asked, const FindResult& below) REQUIRES(mutex_);
  void StartRestore(std::span<const BlockId> ids, const std::function<void()>& on_restored,
                    CacheAdmission* admission) REQUIRES(mutex_);
  int64_t DropIfUseless(int64_t received, std::vector<BlockRef>& held) const;
  int64_t CutIncomplete(int64_t received, std::vector<BlockRef>& held) const;
  size_t HoldComplete(const CacheRequest& request, std::vector<BlockRef>& held, FindResult& below,
                      BlockCredit& quota) const;
  bool LacksParents(const BlockId& root, std::span<const BlockId> ids,
                    std::span<const BlockRef> blocks) const REQUIRES(mutex_);
  size_t FirstNeeded(const CacheRequest& request, size_t found) const;
  int64_t CountedAsHeld(const CacheRequest& request, std::span<const BlockRef> held,
                        size_t first) const;
  void InsertLocked(const CacheAccess& access, const PromptBlocks& prompt,
                    std::span<BlockRef> blocks) REQUIRES(mutex_);

  BlockPool& pool_;
  const Clock& clock_;
  const Options options_;
  const BlockId shared_root_;                  // of prompts without a salt and without lossy KV
  const std::unique_ptr<BlockTokens> tokens_;  // null: not kept
  mutable Mutex mutex_;
  TieredStore* store_ GUARDED_BY(mutex_) = nullptr;
  absl::flat_hash_map<BlockId, LowerTierEntry> lower_tiers_ GUARDED_BY(mutex_);
  BlockFeed feed_ GUARDED_BY(mutex_);
  PrefixCache cache_ GUARDED_BY(mutex_);
  bool clearing_ GUARDED_BY(mutex_) = false;
  int64_t owed_ GUARDED_BY(mutex_) = 0;  // blocks, of all sequences
  std::array<uint64_t, 3> missed_ GUARDED_BY(mutex_){};
};

}  // namespace penstock
