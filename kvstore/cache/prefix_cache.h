#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/cache/block_pool.h"
#include "kvstore/cache/cache_policy.h"
#include "kvstore/names/block_hash.h"

namespace penstock {

// Receives every change of the set of cached blocks. Methods are called during the cache's own
// calls, on the same thread; they must not call the cache and must not block.
class PrefixCacheObserver {
 public:
  virtual ~PrefixCacheObserver() = default;
  // The blocks `ids` were stored; the first of them is a child of `parent`.
  virtual void OnStored(const BlockId& parent, std::span<const BlockId> ids) = 0;
  // The blocks `ids` with their pages are about to be evicted; the first of them is a child of
  // `parent`. `uses` is the number of times they were used. An observer that needs the pages longer
  // shares them.
  virtual void OnEvicted(const BlockId& parent, std::span<const BlockId> ids,
                         std::span<const BlockRef> pages, uint32_t uses) = 0;
};

// Totals since the cache was made. All count blocks, except `lookups`.
struct PrefixCacheCounts {
  uint64_t lookups = 0;
  uint64_t asked = 0;
  uint64_t hit = 0;
  uint64_t stored = 0;
  uint64_t evicted = 0;
  uint64_t evicted_pinned = 0;  // part of `evicted`: pinned, evicted as a last resort
};

// This room decides which KV stays in a worker's memory: the block pool, the prefix cache and its
// eviction policies. It knows pages and block ids, but not where evicted KV goes, who asks, or how
// KV moves between workers.

// PrefixCache maps prefixes to the device pages with their KV: a path-compressed radix tree over
// block ids. A node is a run of blocks that have always been used together; it is split where an
// access ends or diverges. Each namespace (tenant, format, provenance) has its own root
// (RootBlockId), so no look-up crosses namespaces.
//
// A block that a sequence refers to stays. The others are evicted from the leaves, in the order of
// the policy, when room is needed. A caller that refers to a block refers to its parents, too,
// unless its model's attention has a window: it drops the blocks that the window has passed, and
// when these are to be evicted, the blocks behind them, which it uses, leave the tree first.
//
// It has no clock, no I/O and no lock. One thread at a time: the owner's thread, or the holder of
// the owner's lock.
class PrefixCache {
 public:
  struct Options {
    // Upper limits on pinned blocks, in all and for one tenant with all its namespaces. Pins beyond
    // them are refused.
    int64_t pinned_max = 0;
    int64_t pinned_max_of_tenant = 0;
  };
  struct PinTerms {
    std::string tenant;  // whose quota pays: any id; empty: the callers without a tenant
    TimePoint until{};
  };
  struct Found {
    CacheAccess access;            // for the Insert of the missing blocks
    std::vector<BlockRef> blocks;  // the leading cached blocks, in order
  };

  // `pool` and `observer` (which may be nullptr) outlive the cache.
  PrefixCache(BlockPool& pool, std::unique_ptr<CachePolicy> policy, Options options,
              PrefixCacheObserver* observer);
  ~PrefixCache();

  // The leading blocks of `ids`, under the namespace of `root`, that are cached. Those before
  // `first` are found, but not shared: their references are empty. None holds a row. Does not count
  // as a use.
  std::vector<BlockRef> Share(const BlockId& root, std::span<const BlockId> ids,
                              size_t first = 0) const;
  // Counts a use of the leading blocks that are cached, of which the caller could take the first
  // `taken`, or all.
  CacheAccess Use(const BlockId& root, std::span<const BlockId> ids, TimePoint now,
                  std::optional<size_t> taken = std::nullopt);
  // Share and Use in one call.
  Found Lookup(const BlockId& root, std::span<const BlockId> ids, TimePoint now);
  bool Contains(const BlockId& id) const { return known_.contains(id); }
  // The number of leading cached blocks. Does not count as a use.
  int64_t CountLeading(const BlockId& root, std::span<const BlockId> ids) const;

  // blocks[i] holds the complete KV of ids[i], which look-ups find from now on. If another page
  // already has the same KV, blocks[i] is replaced by that page, except in a model with a window.
  // If that page has lost its row and blocks[i] has one, the cache takes blocks[i] in its place.
  // Both spans start at the root and have equal length. References to leading blocks that the cache
  // has may be empty.
  void Insert(const CacheAccess& access, const BlockId& root, std::span<const BlockId> ids,
              std::span<BlockRef> blocks);

  // Evicts up to `blocks` blocks without other references into the pool and returns their number.
  // Pinned blocks go only as a last resort: a pin protects a block from other prefixes, but does
  // not keep requests from being served.
  int64_t Evict(int64_t blocks, TimePoint now);
  // Evicts until `blocks` blocks of the pool are free or leaving, and `ahead` more as far as no
  // pinned block is needed for them. True when `blocks` blocks are free now.
  bool MakeRoom(int64_t blocks, int64_t ahead, TimePoint now);
  // Evicts everything without other references.
  void Clear(TimePoint now);

  // Protects the cached leading blocks of `ids` from eviction until `terms.until`, within the
  // tenant's and the total limit. Returns the number of protected blocks.
  int64_t Pin(const BlockId& root, std::span<const BlockId> ids, const PinTerms& terms,
              TimePoint now);

  // Calls `visit` for every run, parents before children.
  using Visitor = std::function<void(const BlockId& parent, std::span<const BlockId> ids)>;
  void ForEachRun(const Visitor& visit) const;

  int64_t blocks() const { return blocks_; }
  int64_t blocks_pinned() const { return pinned_; }
  size_t runs() const { return runs_; }
  const PrefixCacheCounts& counts() const { return counts_; }

 private:
  struct Node;
  using Children = absl::flat_hash_map<BlockId, std::unique_ptr<Node>>;
  // The end of a walk along ids: `blocks` blocks were found, the last `in_run` of them in `node`.
  struct Position {
    Node* node = nullptr;
    size_t in_run = 0;
    size_t blocks = 0;
  };

  Position Walk(const BlockId& root, std::span<const BlockId> ids) const;
  Node* RootFor(const BlockId& root);
  Node* CutAt(const Position& position);
  Node* Split(Node* node, size_t blocks);
  void UseAll(Node* node, const CacheAccess& access);
  void Adopt(Node* last, std::span<BlockRef> blocks);
  void AdoptOne(BlockRef& cached, BlockRef& block);
  Node* Append(Node* node, const CacheRunStats& stats, std::span<const BlockId> ids,
               std::span<const BlockRef> blocks);
  void Extend(Node* node, std::span<const BlockId> ids, std::span<const BlockRef> blocks);
  int64_t EvictTail(Node* node, int64_t blocks);
  bool CutUsedTail(Node* node);
  void TakeOffTail(Node* node, size_t count, bool in_use);
  int64_t EvictUnpinned(int64_t blocks, TimePoint now);
  int64_t EvictPinned(int64_t blocks);
  void Remove(Node* node);
  void List(Node* node);
  void Unlist(Node* node);
  int64_t PinRoom(const std::string& tenant) const;
  void SetPin(Node* node, TimePoint until);
  void CountPinned(Node* node, int64_t blocks);
  void EndPins(TimePoint now);

  BlockPool& pool_;
  const std::unique_ptr<CachePolicy> policy_;
  const Options options_;
  PrefixCacheObserver* const observer_;
  absl::flat_hash_map<BlockId, std::unique_ptr<Node>> roots_;
  absl::flat_hash_set<BlockId> known_;          // every cached block
  std::set<std::pair<TimePoint, Node*>> pins_;  // by the end of pinning
  uint64_t accesses_ = 0;
  int64_t blocks_ = 0;
  int64_t pinned_ = 0;
  absl::flat_hash_map<std::string, int64_t> pinned_of_;  // by tenant; only those that have pins
  size_t runs_ = 0;
  PrefixCacheCounts counts_;
};

}  // namespace penstock
