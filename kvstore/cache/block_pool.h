#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "kernels/paged_kv.h"
#include "kvstore/cache/freed_waiters.h"
#include "kvstore/cache/window_rows.h"

namespace penstock {

class BlockPool;

// The right of a request to hold window rows (WindowRows): the most that its references hold at one
// time, shared ones counted once. They share the quota, which returns with the last of them. Must
// not outlive its pool.
class WindowQuota {
 public:
  ~WindowQuota();
  WindowQuota(const WindowQuota&) = delete;
  WindowQuota& operator=(const WindowQuota&) = delete;

 private:
  friend class BlockPool;
  friend class BlockCredit;
  WindowQuota(BlockPool* pool, int64_t rows) : pool_(pool), rows_(rows) {}
  BlockPool* pool_ = nullptr;
  int64_t rows_ = 0;
  int64_t references_ = 0;  // that hold a row; guarded by the pool's lock
};

// One reference to one block. When the last reference dies, the block returns to the pool. In a
// model with a window group a reference may also hold the block's row.
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
  // Another reference that does not hold the row.
  BlockRef ShareWithoutRow() const;
  bool holds_row() const { return quota_ != nullptr; }
  uint32_t id() const { return id_; }
  explicit operator bool() const { return pool_ != nullptr; }

 private:
  friend class BlockPool;
  friend class BlockCredit;
  BlockRef(BlockPool* pool, uint32_t id) : pool_(pool), id_(id) {}
  BlockPool* pool_ = nullptr;
  uint32_t id_ = 0;
  std::shared_ptr<WindowQuota> quota_;  // set: the row is held, within this quota
};

// The right to take up to `blocks` blocks later, and to hold rows within a quota. Requests are
// admitted by credit and allocate their pages late. Rights that were not used return to the pool
// when the credit is destroyed. Move-only; one thread at a time; must not outlive its pool.
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
  // Gives back the right to blocks, and keeps the quota.
  void GiveBackBlocks();

  bool has_quota() const { return quota_ != nullptr; }
  void SetQuota(std::shared_ptr<WindowQuota> quota) { quota_ = std::move(quota); }
  // Gives up the quota of a credit that was never used, without waking those that wait for room.
  void DropQuota();
  // The references to blocks [first, end) hold their rows from now on, and those before no longer:
  // the first `end` blocks of a sequence whose next tokens see no block before `first`. Nothing
  // happens in a model without a window group.
  void MoveWindow(std::span<BlockRef> blocks, int64_t first, int64_t end);
  void HoldRow(BlockRef& block) { MoveWindow({&block, 1}, 0, 1); }
  // Holds the rows of cached blocks, which a look-up has found. False, and nothing is held, if one
  // of them has none.
  bool TryHoldRows(std::span<BlockRef> blocks);
  // True if no reference holds a row within the quota, or there is none.
  bool HoldsNoRows() const;

 private:
  friend class BlockPool;
  BlockCredit(BlockPool* pool, int64_t blocks) : pool_(pool), blocks_(blocks) {}
  BlockPool* pool_ = nullptr;
  int64_t blocks_ = 0;
  std::shared_ptr<WindowQuota> quota_;
};

// A fixed arena of blocks with reference counts. Any thread; every call takes one short lock.
// A block is in one of four states: free, used (a sequence refers to it), cached (only the prefix
// cache refers to it) or leaving (evicted, but a lower tier still copies it).
class BlockPool {
 public:
  // Maps layout.BlockStride() * blocks bytes. A page is zero until its first write; a reused block
  // keeps its old bytes. RESOURCE_EXHAUSTED names the size; INVALID_ARGUMENT when the size is zero.
  static absl::StatusOr<std::unique_ptr<BlockPool>> Create(const KvLayout& layout, int64_t blocks);
  // The same for a model with a window group, whose layers have memory for `rows` blocks only. With
  // a span that memory is always apart from that of the first copies.
  static absl::StatusOr<std::unique_ptr<BlockPool>> Create(const KvLayout& layout, int64_t blocks,
                                                           int64_t rows);
  // A pool over memory that the caller owns, such as a GPU's or a file, and that outlives the pool.
  // Each of its blocks has memory for all layers. Errors as for Create.
  static absl::StatusOr<std::unique_ptr<BlockPool>> CreateOver(const PagedKv& pages);
  // The same for a model with a window group, whose layers have memory for `rows` blocks only,
  // behind that of the other layers.
  static absl::StatusOr<std::unique_ptr<BlockPool>> CreateOver(const PagedKv& pages, int64_t rows);
  ~BlockPool();  // CHECKs that every block was returned, by the prefix cache too.

  // RESOURCE_EXHAUSTED when fewer than `blocks` blocks are neither referenced nor reserved.
  absl::StatusOr<BlockCredit> Reserve(int64_t blocks) EXCLUDES(mutex_);

  // A quota of `rows` rows; null if fewer than `left` others would remain for further quotas.
  // Always one in a model without a window group.
  std::shared_ptr<WindowQuota> ReserveRows(int64_t rows, int64_t left = 0) EXCLUDES(mutex_);

  // Adds one reference to each block under a single lock, which holds a row if the given one does.
  // An empty reference stays empty.
  std::vector<BlockRef> Share(std::span<const BlockRef> blocks) EXCLUDES(mutex_);
  // The same without rows.
  std::vector<BlockRef> ShareWithoutRows(std::span<const BlockRef> blocks) EXCLUDES(mutex_);
  // `block` becomes a reference to the cached block `by`, which has the same KV, and holds its row
  // if it held one. It stays if others hold its own row, too. False, and nothing has changed, if
  // the row of `by` is gone.
  bool Replace(BlockRef& block, const BlockRef& by) EXCLUDES(mutex_);
  // Another reference, for a copy of the cached block to a lower tier. It holds the row if the
  // block has one and a quota for it can be had; else the row is given up. Lower tiers have no
  // second copies of pages with a span, so the row of such a page is given up.
  BlockRef ShareToCopy(const BlockRef& block) EXCLUDES(mutex_);
  // Rows that a look-up would have needed, see WindowRows::Want; and the same for another page of
  // the same KV.
  void WantRows(std::span<const BlockRef> blocks) EXCLUDES(mutex_);
  void PassOnWant(const BlockRef& from, const BlockRef& to) EXCLUDES(mutex_);
  // For each of `blocks`, true if its KV of all layers is here.
  std::vector<bool> HaveRows(std::span<const BlockRef> blocks) const EXCLUDES(mutex_);

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
  // The pool's memory for each block, rows included.
  uint64_t block_bytes() const;
  int64_t blocks_free() const EXCLUDES(mutex_);    // neither referenced nor reserved
  int64_t blocks_used() const EXCLUDES(mutex_);    // referenced by others than the prefix cache
  int64_t blocks_cached() const EXCLUDES(mutex_);  // referenced by the prefix cache alone
  // Evicted; free when the copy to a lower tier ends.
  int64_t blocks_leaving() const EXCLUDES(mutex_);
  int64_t blocks_reserved() const EXCLUDES(mutex_);  // in credits that were not used yet
  // Free, cached or leaving: the most that a request could get once all copies are made.
  int64_t blocks_obtainable() const EXCLUDES(mutex_);
  // Of the window group, all 0 without one.
  struct RowCounts {
    bool apart = false;  // there is memory for fewer rows than blocks
    int64_t total = 0;
    int64_t held = 0;      // by sequences
    int64_t idle = 0;      // kept for look-ups, and taken when a row is needed
    int64_t reserved = 0;  // by quotas, those held included
  };
  RowCounts row_counts() const EXCLUDES(mutex_);

 private:
  friend class BlockRef;
  friend class BlockCredit;
  friend class WindowQuota;
  static absl::StatusOr<std::unique_ptr<BlockPool>> CreateArena(const KvLayout& layout,
                                                                int64_t blocks, bool apart,
                                                                int64_t rows);
  // `apart`: rows have memory of their own.
  BlockPool(PagedKv view, bool owns_arena, bool apart, int64_t rows);
  // A further reference to the block of `of`, which holds the row if `quota` is not null.
  BlockRef Refer(const BlockRef& of, std::shared_ptr<WindowQuota> quota) EXCLUDES(mutex_);
  BlockRef ReferLocked(const BlockRef& of, std::shared_ptr<WindowQuota> quota) REQUIRES(mutex_);
  void Drop(const BlockRef& block) EXCLUDES(mutex_);
  bool DropLocked(const BlockRef& block) REQUIRES(mutex_);  // true: it is free or idle now
  // The row of `block`.
  void HoldLocked(BlockRef& block, const std::shared_ptr<WindowQuota>& quota) REQUIRES(mutex_);
  void DropRowLocked(const BlockRef& block, bool passed = false) REQUIRES(mutex_);
  void ReturnRows(int64_t rows, bool tell) EXCLUDES(mutex_);
  int64_t ObtainableLocked() const REQUIRES(mutex_);
  std::vector<BlockRef> TakeReserved(int64_t count) EXCLUDES(mutex_);
  void ReturnReserved(int64_t count) EXCLUDES(mutex_);

  PagedKv view_;
  WindowRowsView rows_view_;  // of a pool that has rows apart from blocks
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
  std::optional<WindowRows> rows_ GUARDED_BY(mutex_);  // nullopt: no window group
  FreedWaiters freed_waiters_;
};

}  // namespace penstock
