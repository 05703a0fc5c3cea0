#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "kernels/paged_kv.h"
#include "kvstore/cache/freed_waiters.h"

namespace penstock {

class BlockPool;

// One reference to one block. When the last reference dies, the block returns to the pool.
// Move-only; Share() makes another reference explicitly. Any thread; must not outlive its pool.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(BlockRef&& other) noexcept;
  BlockRef& operator=(BlockRef&& other) noexcept;
  BlockRef(const BlockRef&) = delete;
  BlockRef& operator=(const BlockRef&) = delete;
  ~BlockRef();

  BlockRef Share() const;
  uint32_t id() const { return id_; }
  explicit operator bool() const { return pool_ != nullptr; }

 private:
  friend class BlockPool;
  BlockRef(BlockPool* pool, uint32_t id) : pool_(pool), id_(id) {}
  BlockPool* pool_ = nullptr;
  uint32_t id_ = 0;
};

// The right to take up to `blocks` blocks later. Requests are admitted by credit and allocate their
// pages late. Rights that were not used return to the pool when the credit is destroyed. Move-only;
// one thread at a time; must not outlive its pool.
class BlockCredit {
 public:
  BlockCredit() = default;
  BlockCredit(BlockCredit&& other) noexcept;
  BlockCredit& operator=(BlockCredit&& other) noexcept;
  BlockCredit(const BlockCredit&) = delete;
  BlockCredit& operator=(const BlockCredit&) = delete;
  ~BlockCredit();

  int64_t blocks() const { return blocks_; }
  // Adds the rights of `other`, a credit of the same pool.
  void Merge(BlockCredit other);
  // Allocates `count` blocks. Never fails for count <= blocks().
  std::vector<BlockRef> Take(int64_t count);

 private:
  friend class BlockPool;
  BlockCredit(BlockPool* pool, int64_t blocks) : pool_(pool), blocks_(blocks) {}
  BlockPool* pool_ = nullptr;
  int64_t blocks_ = 0;
};

// A fixed arena of blocks with reference counts. Any thread; every call takes one short lock.
// A block is in one of four states: free, used (a sequence refers to it), cached (only the prefix
// cache refers to it) or leaving (evicted, but a lower tier still copies it).
class BlockPool {
 public:
  // Maps layout.BlockStride() * blocks bytes. A page is zero until its first write; a reused block
  // keeps its old bytes. RESOURCE_EXHAUSTED names the size; INVALID_ARGUMENT when the size is zero.
  static absl::StatusOr<std::unique_ptr<BlockPool>> Create(const KvLayout& layout, int64_t blocks);
  // A pool over memory that the caller owns, such as a GPU's, and that outlives the pool. Errors as
  // for Create.
  static absl::StatusOr<std::unique_ptr<BlockPool>> CreateOver(const PagedKv& pages);
  ~BlockPool();  // CHECKs that every block was returned, by the prefix cache too.

  // RESOURCE_EXHAUSTED when fewer than `blocks` blocks are neither referenced nor reserved.
  absl::StatusOr<BlockCredit> Reserve(int64_t blocks) EXCLUDES(mutex_);

  // Adds one reference to each block under a single lock. An empty reference stays empty.
  std::vector<BlockRef> Share(std::span<const BlockRef> blocks) EXCLUDES(mutex_);

  // Drops references that were taken only to look at blocks, when `obtainable` blocks could be had.
  // Requests that wait for blocks are woken only if more can be had now: otherwise two requests
  // that look in vain would wake each other for ever.
  void DropShared(std::vector<BlockRef> blocks, int64_t obtainable) EXCLUDES(mutex_);

  // Records that the prefix cache holds (or no longer holds) one reference to each of `blocks`. A
  // block without other references is idle: it counts as cached, not as used.
  void SetCached(std::span<const BlockRef> blocks, bool cached) EXCLUDES(mutex_);
  // The prefix cache evicts `blocks`, which were idle. A remaining reference belongs to a copy to a
  // lower tier. Until the copy ends, the block is leaving and counts neither as used nor as free.
  void SetLeaving(std::span<const BlockRef> blocks) EXCLUDES(mutex_);
  // Drops a preempted sequence's last references to its pages. Pages that are not cached become
  // leaving, as with SetLeaving: remaining references belong to copies to a lower tier.
  void DropToLeave(std::vector<BlockRef> pages) EXCLUDES(mutex_);
  // The number of idle blocks at the end of `blocks`; all of `blocks` are cached.
  size_t IdleTail(std::span<const BlockRef> blocks) const EXCLUDES(mutex_);
  // The number of blocks at the end of `blocks`, all of which are cached, that are not idle.
  size_t UsedTail(std::span<const BlockRef> blocks) const EXCLUDES(mutex_);
  // The number of `blocks`, references to cached blocks, to which only the caller and the prefix
  // cache refer.
  int64_t CountOwn(std::span<const BlockRef> blocks) const EXCLUDES(mutex_);

  // Requests that wait for blocks. Raised when a block becomes free or idle, or a credit ends.
  FreedWaiters& freed() { return freed_waiters_; }

  PagedKv view() const { return view_; }
  int64_t blocks_total() const { return view_.blocks; }
  int64_t blocks_free() const EXCLUDES(mutex_);    // neither referenced nor reserved
  int64_t blocks_used() const EXCLUDES(mutex_);    // referenced by others than the prefix cache
  int64_t blocks_cached() const EXCLUDES(mutex_);  // referenced by the prefix cache alone
  // Evicted; free when the copy to a lower tier ends.
  int64_t blocks_leaving() const EXCLUDES(mutex_);
  int64_t blocks_reserved() const EXCLUDES(mutex_);  // in credits that were not used yet
  // Free, cached or leaving: the most that a request could get once all copies are made.
  int64_t blocks_obtainable() const EXCLUDES(mutex_);

 private:
  friend class BlockRef;
  friend class BlockCredit;
  BlockPool(PagedKv view, bool owns_arena);
  void AddReference(uint32_t block) EXCLUDES(mutex_);
  void AddReferenceLocked(uint32_t block) REQUIRES(mutex_);
  void Drop(uint32_t block) EXCLUDES(mutex_);
  bool DropLocked(uint32_t block) REQUIRES(mutex_);  // true: it is free or idle now
  int64_t ObtainableLocked() const REQUIRES(mutex_);
  std::vector<BlockRef> TakeReserved(int64_t count) EXCLUDES(mutex_);
  void ReturnReserved(int64_t count) EXCLUDES(mutex_);

  PagedKv view_;
  const bool owns_arena_;
  const std::unique_ptr<std::atomic<uint64_t>[]> serials_;  // see PagedKv
  mutable Mutex mutex_;
  std::vector<uint32_t> free_ GUARDED_BY(mutex_);
  std::vector<uint32_t> references_ GUARDED_BY(mutex_);
  std::vector<bool> cached_ GUARDED_BY(mutex_);
  std::vector<bool> leaving_ GUARDED_BY(mutex_);
  int64_t idle_ GUARDED_BY(mutex_) = 0;  // cached blocks with one reference
  int64_t leaving_blocks_ GUARDED_BY(mutex_) = 0;
  int64_t reserved_ GUARDED_BY(mutex_) = 0;
  FreedWaiters freed_waiters_;
};

}  // namespace penstock
