#pragma once

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

// One reference to one block; the last one gone gives the block back. Move-only: sharing is said
// aloud with Share(). Must not outlive its pool. Any thread.
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

// The right to take up to `blocks` blocks later: admission is by credit, pages come late. What is
// not taken goes back when the credit is destroyed. Move-only; must not outlive its pool.
class BlockCredit {
 public:
  BlockCredit() = default;
  BlockCredit(BlockCredit&& other) noexcept;
  BlockCredit& operator=(BlockCredit&& other) noexcept;
  BlockCredit(const BlockCredit&) = delete;
  BlockCredit& operator=(const BlockCredit&) = delete;
  ~BlockCredit();

  int64_t blocks() const { return blocks_; }
  // Adds the rights of another credit of the same pool.
  void Merge(BlockCredit other);
  // Never fails for count <= blocks().
  std::vector<BlockRef> Take(int64_t count);

 private:
  friend class BlockPool;
  BlockCredit(BlockPool* pool, int64_t blocks) : pool_(pool), blocks_(blocks) {}
  BlockPool* pool_ = nullptr;
  int64_t blocks_ = 0;
};

// A fixed arena of blocks with reference counts. Any thread; every call is short.
class BlockPool {
 public:
  // Maps layout.BlockStride() * blocks bytes, zero until written (a block that is used again holds
  // what it held). RESOURCE_EXHAUSTED says how much; INVALID_ARGUMENT for nothing at all.
  static absl::StatusOr<std::unique_ptr<BlockPool>> Create(const KvLayout& layout, int64_t blocks);
  // Over memory of others, which outlives the pool: a GPU's. Otherwise as Create.
  static absl::StatusOr<std::unique_ptr<BlockPool>> CreateOver(const PagedKv& pages);
  ~BlockPool();  // CHECKs that every block is back, also from the prefix cache.

  // RESOURCE_EXHAUSTED when fewer than `blocks` are neither used nor promised.
  absl::StatusOr<BlockCredit> Reserve(int64_t blocks) EXCLUDES(mutex_);

  // One more reference to each, at the price of one lock.
  std::vector<BlockRef> Share(std::span<const BlockRef> blocks) EXCLUDES(mutex_);

  // Drops references that were taken only to look at blocks, when `obtainable` blocks could be had.
  // Requests that wait for blocks are woken only if there are more now: otherwise two requests that
  // look in vain would wake each other for ever.
  void DropShared(std::vector<BlockRef> blocks, int64_t obtainable) EXCLUDES(mutex_);

  // One reference to each of `blocks` is the prefix cache's, or is not any more. A block that
  // nobody else refers to is idle: it counts as cached and not as used.
  void SetCached(std::span<const BlockRef> blocks, bool cached) EXCLUDES(mutex_);
  // The prefix cache lets go of `blocks`, which were idle: whoever refers to one now only copies it
  // to a lower tier. It leaves, and counts neither as used nor as free until the copy is made.
  void SetLeaving(std::span<const BlockRef> blocks) EXCLUDES(mutex_);
  // Drops the last references of a preempted sequence to its pages. Those that are not cached leave
  // in the same way: whoever else refers to one only copies it.
  void DropToLeave(std::vector<BlockRef> pages) EXCLUDES(mutex_);
  // How many of the last of `blocks`, which are cached, are idle.
  size_t IdleTail(std::span<const BlockRef> blocks) const EXCLUDES(mutex_);

  // Requests that wait for blocks. Raised when a block becomes free or idle, or a credit ends.
  FreedWaiters& freed() { return freed_waiters_; }

  PagedKv view() const { return view_; }
  int64_t blocks_total() const { return view_.blocks; }
  int64_t blocks_free() const EXCLUDES(mutex_);      // neither referenced nor promised
  int64_t blocks_used() const EXCLUDES(mutex_);      // referenced by others than the prefix cache
  int64_t blocks_cached() const EXCLUDES(mutex_);    // by the prefix cache alone
  int64_t blocks_leaving() const EXCLUDES(mutex_);   // free as soon as a copy is made
  int64_t blocks_promised() const EXCLUDES(mutex_);  // in credits, not taken yet
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
  std::vector<BlockRef> TakePromised(int64_t count) EXCLUDES(mutex_);
  void ReturnPromise(int64_t count) EXCLUDES(mutex_);

  PagedKv view_;
  const bool owns_arena_;
  mutable Mutex mutex_;
  std::vector<uint32_t> free_ GUARDED_BY(mutex_);
  std::vector<uint32_t> references_ GUARDED_BY(mutex_);
  std::vector<bool> cached_ GUARDED_BY(mutex_);
  std::vector<bool> leaving_ GUARDED_BY(mutex_);
  int64_t idle_ GUARDED_BY(mutex_) = 0;  // cached, with one reference
  int64_t leaving_blocks_ GUARDED_BY(mutex_) = 0;
  int64_t promised_ GUARDED_BY(mutex_) = 0;
  FreedWaiters freed_waiters_;
};

}  // namespace penstock
