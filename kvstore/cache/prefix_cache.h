#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "kvstore/cache/block_pool.h"
#include "kvstore/cache/cache_policy.h"
#include "kvstore/names/block_hash.h"

namespace penstock {

// Hears of every change of what a PrefixCache holds. Called in the middle of the cache's calls:
// must not call the cache, and must not block.
class PrefixCacheObserver {
 public:
  virtual ~PrefixCacheObserver() = default;
  // `ids`, the first of them a child of `parent`, are here now.
  virtual void OnStored(const BlockId& parent, std::span<const BlockId> ids) = 0;
  // `ids`, the first of them a child of `parent`, are about to go, with their pages; `uses` is how
  // often they were used. Whoever wants the pages for longer shares them.
  virtual void OnEvicted(const BlockId& parent, std::span<const BlockId> ids,
                         std::span<const BlockRef> pages, uint32_t uses) = 0;
};

// Since the cache was made; in blocks but for `lookups`.
struct PrefixCacheCounts {
  uint64_t lookups = 0;
  uint64_t asked = 0;
  uint64_t hit = 0;
  uint64_t stored = 0;
  uint64_t evicted = 0;
  uint64_t evicted_pinned = 0;  // of those: because nothing else was left
};

// Which device pages hold the KV of which prefixes: a radix tree over block ids, path-compressed. A
// node is a run of blocks that have always been used together; it is split where an access ends or
// leaves it. Tenants, formats and provenances have roots of their own (RootBlockId), so nothing is
// found across them.
//
// A block that a sequence refers to stays; the others go when room is wanted, from the leaves, in
// the order of the policy. Whoever holds a block must hold its parents.
//
// No clock, no I/O, no lock: belongs to the thread (or the lock) that owns it.
class PrefixCache {
 public:
  struct Options {
    // Most blocks that can be pinned at once, and by one tenant; further pins are refused.
    int64_t pinned_max = 0;
    int64_t pinned_most_of_tenant = 0;
  };
  struct Found {
    CacheAccess access;            // for the Insert of what was not found
    std::vector<BlockRef> blocks;  // the leading ones, in order
  };

  // `pool` and `observer` (which may be nullptr) outlive the cache.
  PrefixCache(BlockPool& pool, std::unique_ptr<CachePolicy> policy, Options options,
              PrefixCacheObserver* observer);
  ~PrefixCache();

  // The leading blocks of `ids`, under the namespace of `root`, that are here. Not a use.
  std::vector<BlockRef> Share(const BlockId& root, std::span<const BlockId> ids) const;
  // A use of the leading blocks that are here.
  CacheAccess Use(const BlockId& root, std::span<const BlockId> ids, TimePoint now);
  // Both.
  Found Lookup(const BlockId& root, std::span<const BlockId> ids, TimePoint now);
  bool Contains(const BlockId& id) const { return known_.contains(id); }
  // How many leading ones there are. Not a use.
  int64_t CountLeading(const BlockId& root, std::span<const BlockId> ids) const;

  // blocks[i] holds the KV of ids[i], whole; from now on it is found. Where another page has the
  // same KV already, blocks[i] becomes that one. Both spans begin at the root and are equally long.
  void Insert(const CacheAccess& access, const BlockId& root, std::span<const BlockId> ids,
              std::span<BlockRef> blocks);

  // Gives up to `blocks` blocks that nobody else refers to back to the pool; returns how many.
  // Pinned ones only when nothing else is left: a pin keeps other prefixes from taking a block, not
  // requests from being served.
  int64_t Evict(int64_t blocks, TimePoint now);
  // Evicts until `blocks` of the pool are free or about to be, and `ahead` more as far as that
  // takes no pinned one; whether `blocks` are free now.
  bool MakeRoom(int64_t blocks, int64_t ahead, TimePoint now);
  // Everything that nobody refers to.
  void Clear(TimePoint now);

  // Protects the leading blocks of `ids` that are here until `until`, as far as the tenant's and
  // the whole quota allow. Returns how many are protected.
  int64_t Pin(const BlockId& root, std::span<const BlockId> ids, TimePoint until, TimePoint now);

  // Calls `visit` for every run, parents first.
  using Visitor = std::function<void(const BlockId& parent, std::span<const BlockId> ids)>;
  void ForEachRun(const Visitor& visit) const;

  int64_t blocks() const { return blocks_; }
  int64_t blocks_pinned() const { return pinned_; }
  size_t runs() const { return runs_; }
  const PrefixCacheCounts& counts() const { return counts_; }

 private:
  struct Node;
  using Children = absl::flat_hash_map<BlockId, std::unique_ptr<Node>>;
  // Where a walk along ids ends: behind `blocks` blocks, `in_run` of them within `node`.
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
  Node* Append(Node* node, const CacheRunStats& stats, std::span<const BlockId> ids,
               std::span<const BlockRef> blocks);
  void Extend(Node* node, std::span<const BlockId> ids, std::span<const BlockRef> blocks);
  int64_t EvictTail(Node* node, int64_t blocks);
  int64_t EvictUnpinned(int64_t blocks, TimePoint now);
  int64_t EvictPinned(int64_t blocks);
  void Remove(Node* node);
  void List(Node* node);
  void Unlist(Node* node);
  void SetPin(Node* node, TimePoint until);
  void EndPins(TimePoint now);

  BlockPool& pool_;
  const std::unique_ptr<CachePolicy> policy_;
  const Options options_;
  PrefixCacheObserver* const observer_;
  absl::flat_hash_map<BlockId, std::unique_ptr<Node>> roots_;
  absl::flat_hash_set<BlockId> known_;          // every block here
  std::set<std::pair<TimePoint, Node*>> pins_;  // by their end
  uint64_t accesses_ = 0;
  int64_t blocks_ = 0;
  int64_t pinned_ = 0;
  size_t runs_ = 0;
  PrefixCacheCounts counts_;
};

}  // namespace penstock
