#include "kvstore/cache/block_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "kernels/kv_pager.h"

namespace penstock {
namespace {

// The last serial number. All pools share it, so that no two blocks ever have the same one.
std::atomic<uint64_t> last_serial{0};

absl::Status CheckSize(const KvLayout& layout, int64_t blocks) {
  const auto stride = static_cast<int64_t>(layout.BlockStride());
  if (blocks < 1 || stride < 1) {
    return InvalidArgument("block pool: {} blocks of {} bytes; both must be at least 1", blocks,
                           stride);
  }
  if (blocks > std::numeric_limits<uint32_t>::max() ||
      blocks > std::numeric_limits<int64_t>::max() / stride) {
    return ResourceExhausted(
        "block pool: {} blocks of {} bytes exceed the address space; configure fewer blocks",
        blocks, stride);
  }
  return absl::OkStatus();
}

// The memory of `blocks` blocks. `apart`: `rows` rows lie behind them, else each row is where its
// block is.
size_t ArenaBytes(const KvLayout& layout, int64_t blocks, bool apart, int64_t rows) {
  const auto all = static_cast<size_t>(blocks);
  if (!apart) return all * layout.BlockStride();
  return all * layout.FullStride() + static_cast<size_t>(rows) * layout.RowStride();
}

}  // namespace

WindowQuota::~WindowQuota() { pool_->ReturnRows(rows_, /*tell=*/true); }

BlockRef::BlockRef(BlockRef&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_), quota_(std::move(other.quota_)) {}

BlockRef& BlockRef::operator=(BlockRef&& other) noexcept {
  // Drops this object's old reference now, not when `other` dies.
  BlockRef moved(std::move(other));
  std::swap(pool_, moved.pool_);
  std::swap(id_, moved.id_);
  std::swap(quota_, moved.quota_);
  return *this;
}

BlockRef::~BlockRef() {
  if (pool_ != nullptr) pool_->Drop(*this);
}

BlockRef BlockRef::Share() const {
  PENSTOCK_CHECK(pool_ != nullptr, "an empty BlockRef is shared");
  return pool_->Refer(*this, quota_);
}

BlockRef BlockRef::ShareWithoutRow() const {
  PENSTOCK_CHECK(pool_ != nullptr, "an empty BlockRef is shared");
  return pool_->Refer(*this, nullptr);
}

BlockCredit::BlockCredit(BlockCredit&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      blocks_(std::exchange(other.blocks_, 0)),
      quota_(std::move(other.quota_)) {}

BlockCredit& BlockCredit::operator=(BlockCredit&& other) noexcept {
  // Returns this object's old credit now, not when `other` dies.
  BlockCredit moved(std::move(other));
  std::swap(pool_, moved.pool_);
  std::swap(blocks_, moved.blocks_);
  std::swap(quota_, moved.quota_);
  return *this;
}

BlockCredit::~BlockCredit() {
  if (pool_ != nullptr) pool_->ReturnReserved(blocks_);
}

void BlockCredit::Merge(BlockCredit other) {
  PENSTOCK_CHECK(pool_ == nullptr || other.pool_ == nullptr || pool_ == other.pool_);
  if (pool_ == nullptr) pool_ = other.pool_;
  blocks_ += std::exchange(other.blocks_, 0);
  if (quota_ == nullptr) quota_ = std::move(other.quota_);
}

std::vector<BlockRef> BlockCredit::Take(int64_t count) {
  PENSTOCK_CHECK_GE(count, 0);
  PENSTOCK_CHECK_LE(count, blocks_);
  if (count == 0) return {};
  blocks_ -= count;
  return pool_->TakeReserved(count);
}

void BlockCredit::GiveBackBlocks() {
  if (pool_ != nullptr) pool_->ReturnReserved(std::exchange(blocks_, 0));
}

void BlockCredit::DropQuota() {
  if (quota_ == nullptr) return;
  quota_->pool_->ReturnRows(std::exchange(quota_->rows_, 0), /*tell=*/false);
  quota_ = nullptr;
}

void BlockCredit::MoveWindow(std::span<BlockRef> blocks, int64_t first, int64_t end) {
  if (quota_ == nullptr || quota_->rows_ == 0) return;
  BlockPool& pool = *quota_->pool_;
  std::vector<std::shared_ptr<WindowQuota>> dropped;  // outside of the lock
  MutexLock lock(pool.mutex_);
  for (auto i = first; i > 0 && blocks[static_cast<size_t>(i - 1)].holds_row(); --i) {
    BlockRef& passed = blocks[static_cast<size_t>(i - 1)];
    pool.DropRowLocked(passed, /*passed=*/true);
    dropped.push_back(std::move(passed.quota_));
  }
  for (auto i = first; i < end; ++i) {
    BlockRef& block = blocks[static_cast<size_t>(i)];
    if (!block.holds_row()) pool.HoldLocked(block, quota_);
  }
}

bool BlockCredit::TryHoldRows(std::span<BlockRef> blocks) {
  if (quota_ == nullptr || quota_->rows_ == 0) return true;
  BlockPool& pool = *quota_->pool_;
  MutexLock lock(pool.mutex_);
  for (const BlockRef& block : blocks) {
    if (!pool.rows_->Has(block.id())) return false;
  }
  for (BlockRef& block : blocks) {
    pool.HoldLocked(block, quota_);
    pool.rows_->Want(block.id());
  }
  return true;
}

bool BlockCredit::HoldsNoRows() const {
  if (quota_ == nullptr) return true;
  MutexLock lock(quota_->pool_->mutex_);
  return quota_->references_ == 0;
}

absl::StatusOr<std::unique_ptr<BlockPool>> BlockPool::Create(const KvLayout& layout,
                                                             int64_t blocks) {
  return CreateArena(layout, blocks, /*apart=*/false, blocks);
}

absl::StatusOr<std::unique_ptr<BlockPool>> BlockPool::Create(const KvLayout& layout, int64_t blocks,
                                                             int64_t rows) {
  const bool apart = !layout.group.empty() && (rows < blocks || layout.span > 0);
  return CreateArena(layout, blocks, apart, rows);
}

absl::StatusOr<std::unique_ptr<BlockPool>> BlockPool::CreateArena(const KvLayout& layout,
                                                                  int64_t blocks, bool apart,
                                                                  int64_t rows) {
  RETURN_IF_ERROR(CheckSize(layout, blocks));
  const size_t bytes = ArenaBytes(layout, blocks, apart, rows);
  // Anonymous pages are zero and take memory only once they are touched.
  void* arena = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (arena == MAP_FAILED) {
    return ResourceExhausted(
        "block pool: {} blocks of {} bytes are {:.1f} GiB, which cannot be mapped ({}); "
        "configure fewer blocks",
        blocks, layout.BlockStride(), static_cast<double>(bytes) / (int64_t{1} << 30),
        std::generic_category().message(errno));
  }
  // Huge pages are an optimisation only; failure is ignored.
  madvise(arena, bytes, MADV_HUGEPAGE);
  return std::unique_ptr<BlockPool>(new BlockPool(
      PagedKv{.arena = static_cast<std::byte*>(arena), .blocks = blocks, .layout = layout},
      /*owns_arena=*/true, apart, rows));
}

absl::StatusOr<std::unique_ptr<BlockPool>> BlockPool::CreateOver(const PagedKv& pages) {
  RETURN_IF_ERROR(CheckSize(pages.layout, pages.blocks));
  return std::unique_ptr<BlockPool>(
      new BlockPool(pages, /*owns_arena=*/false, /*apart=*/false, pages.blocks));
}

absl::StatusOr<std::unique_ptr<BlockPool>> BlockPool::CreateOver(const PagedKv& pages,
                                                                 int64_t rows) {
  RETURN_IF_ERROR(CheckSize(pages.layout, pages.blocks));
  return std::unique_ptr<BlockPool>(
      new BlockPool(pages, /*owns_arena=*/false, /*apart=*/true, rows));
}

BlockPool::BlockPool(PagedKv view, bool owns_arena, bool apart, int64_t rows)
    : view_(view),
      owns_arena_(owns_arena),
      serials_(std::make_unique<std::atomic<uint64_t>[]>(static_cast<size_t>(view.blocks))),
      references_(view.blocks, 0),
      cached_(view.blocks, false),
      leaving_(view.blocks, false) {
  view_.serials = serials_.get();
  free_.reserve(view.blocks);
  for (int64_t block = view.blocks; block-- > 0;) free_.push_back(static_cast<uint32_t>(block));
  if (view.layout.group.empty()) return;
  rows_.emplace(view.blocks, rows);
  if (!apart) return;
  rows_view_ = RowsBehind(view_, rows_->rows(), rows_->no_row());
  view_.rows = &rows_view_;
}

BlockPool::~BlockPool() {
  PENSTOCK_CHECK_EQ(blocks_used(), 0);
  PENSTOCK_CHECK_EQ(blocks_cached(), 0);
  PENSTOCK_CHECK_EQ(blocks_leaving(), 0);
  PENSTOCK_CHECK_EQ(blocks_reserved(), 0);
  const RowCounts rows = row_counts();
  PENSTOCK_CHECK_EQ(rows.held, 0);
  PENSTOCK_CHECK_EQ(rows.reserved, 0);
  if (!owns_arena_) return;
  munmap(view_.arena, ArenaBytes(view_.layout, view_.blocks, view_.rows != nullptr, rows.total));
}

absl::StatusOr<BlockCredit> BlockPool::Reserve(int64_t blocks) {
  PENSTOCK_CHECK_GE(blocks, 0);
  MutexLock lock(mutex_);
  const int64_t left = static_cast<int64_t>(free_.size()) - reserved_;
  if (blocks > left) {
    return ResourceExhausted("block pool: {} blocks requested, {} of {} are free", blocks, left,
                             view_.blocks);
  }
  reserved_ += blocks;
  return BlockCredit(this, blocks);
}

std::shared_ptr<WindowQuota> BlockPool::ReserveRows(int64_t rows, int64_t left) {
  MutexLock lock(mutex_);
  if (!rows_) rows = 0;
  if (rows > 0 && !rows_->CanReserve(rows + left)) return nullptr;
  if (rows > 0) rows_->Reserve(rows);
  return std::shared_ptr<WindowQuota>(new WindowQuota(this, rows));
}

std::vector<BlockRef> BlockPool::Share(std::span<const BlockRef> blocks) {
  std::vector<BlockRef> shared;
  shared.reserve(blocks.size());
  MutexLock lock(mutex_);
  for (const BlockRef& block : blocks) {
    shared.push_back(block ? ReferLocked(block, block.quota_) : BlockRef());
  }
  return shared;
}

std::vector<BlockRef> BlockPool::ShareWithoutRows(std::span<const BlockRef> blocks) {
  std::vector<BlockRef> shared;
  shared.reserve(blocks.size());
  MutexLock lock(mutex_);
  for (const BlockRef& block : blocks) {
    shared.push_back(block ? ReferLocked(block, nullptr) : BlockRef());
  }
  return shared;
}

BlockRef BlockPool::ShareToCopy(const BlockRef& block) {
  std::shared_ptr<WindowQuota> quota = view_.layout.span > 0 ? nullptr : ReserveRows(1);
  MutexLock lock(mutex_);
  if (!rows_) return ReferLocked(block, nullptr);
  if (rows_->Has(block.id_) && quota != nullptr) return ReferLocked(block, std::move(quota));
  rows_->Forget(block.id_);
  return ReferLocked(block, nullptr);
}

bool BlockPool::Replace(BlockRef& block, const BlockRef& by) {
  BlockRef replaced;  // dropped without the lock
  MutexLock lock(mutex_);
  std::shared_ptr<WindowQuota> quota = block.quota_;
  if (quota != nullptr && !rows_->Has(by.id_)) return false;
  // A handoff of the same request sends from it: the quota would have to pay for both rows.
  if (quota != nullptr && rows_->holders(block.id_) > 1) return true;
  // The row first, so that the quota is never exceeded.
  if (quota != nullptr) DropRowLocked(block);
  block.quota_ = nullptr;
  replaced = std::exchange(block, ReferLocked(by, std::move(quota)));
  return true;
}

void BlockPool::WantRows(std::span<const BlockRef> blocks) {
  MutexLock lock(mutex_);
  for (const BlockRef& block : blocks) rows_->Want(block.id_);
}

void BlockPool::PassOnWant(const BlockRef& from, const BlockRef& to) {
  MutexLock lock(mutex_);
  if (rows_->wanted(from.id_)) rows_->Want(to.id_);
}

std::vector<bool> BlockPool::HaveRows(std::span<const BlockRef> blocks) const {
  std::vector<bool> have(blocks.size(), true);
  MutexLock lock(mutex_);
  for (size_t i = 0; rows_ && i < blocks.size(); ++i) have[i] = rows_->Has(blocks[i].id_);
  return have;
}

void BlockPool::DropShared(std::vector<BlockRef> blocks, int64_t obtainable) {
  bool more = false;
  {
    MutexLock lock(mutex_);
    for (BlockRef& block : blocks) {
      if (!block) continue;
      DropLocked(block);
      block.pool_ = nullptr;
    }
    more = ObtainableLocked() > obtainable;
  }
  if (more) freed_waiters_.Raise();
}

void BlockPool::SetCached(std::span<const BlockRef> blocks, bool cached) {
  MutexLock lock(mutex_);
  for (const BlockRef& block : blocks) {
    PENSTOCK_CHECK_NE(cached_[block.id_], cached);
    cached_[block.id_] = cached;
    if (references_[block.id_] == 1) idle_ += cached ? 1 : -1;
  }
}

void BlockPool::SetLeaving(std::span<const BlockRef> blocks) {
  MutexLock lock(mutex_);
  for (const BlockRef& block : blocks) {
    PENSTOCK_CHECK(cached_[block.id_]);
    cached_[block.id_] = false;
    if (references_[block.id_] == 1) {
      --idle_;
    } else {
      leaving_[block.id_] = true;
      ++leaving_blocks_;
    }
  }
}

// `pages` is a parameter, so its references drop after the lock is released. Until then their pages
// cannot be allocated again.
void BlockPool::DropToLeave(std::vector<BlockRef> pages) {
  MutexLock lock(mutex_);
  for (const BlockRef& page : pages) {
    const uint32_t id = page.id_;
    if (references_[id] == 1 || cached_[id] || leaving_[id]) continue;
    leaving_[id] = true;
    ++leaving_blocks_;
  }
}

size_t BlockPool::IdleTail(std::span<const BlockRef> blocks) const {
  MutexLock lock(mutex_);
  size_t idle = 0;
  while (idle < blocks.size() && references_[blocks[blocks.size() - 1 - idle].id_] == 1) ++idle;
  return idle;
}

size_t BlockPool::UsedTail(std::span<const BlockRef> blocks) const {
  MutexLock lock(mutex_);
  size_t used = 0;
  while (used < blocks.size() && references_[blocks[blocks.size() - 1 - used].id_] > 1) ++used;
  return used;
}

int64_t BlockPool::CountOwn(std::span<const BlockRef> blocks) const {
  MutexLock lock(mutex_);
  int64_t own = 0;
  for (const BlockRef& block : blocks) own += references_[block.id_] == 2 ? 1 : 0;
  return own;
}

uint64_t BlockPool::block_bytes() const {
  const size_t bytes =
      ArenaBytes(view_.layout, view_.blocks, view_.rows != nullptr, row_counts().total);
  return bytes / static_cast<uint64_t>(view_.blocks);
}

int64_t BlockPool::blocks_free() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(free_.size()) - reserved_;
}

int64_t BlockPool::blocks_used() const {
  MutexLock lock(mutex_);
  return view_.blocks - static_cast<int64_t>(free_.size()) - idle_ - leaving_blocks_;
}

int64_t BlockPool::blocks_leaving() const {
  MutexLock lock(mutex_);
  return leaving_blocks_;
}

int64_t BlockPool::blocks_cached() const {
  MutexLock lock(mutex_);
  return idle_;
}

int64_t BlockPool::blocks_reserved() const {
  MutexLock lock(mutex_);
  return reserved_;
}

int64_t BlockPool::blocks_obtainable() const {
  MutexLock lock(mutex_);
  return ObtainableLocked();
}

int64_t BlockPool::ObtainableLocked() const {
  return static_cast<int64_t>(free_.size()) - reserved_ + idle_ + leaving_blocks_;
}

BlockPool::RowCounts BlockPool::row_counts() const {
  MutexLock lock(mutex_);
  if (!rows_) return {};
  return {.apart = !rows_->unlimited(),
          .total = rows_->total(),
          .held = rows_->held(),
          .idle = rows_->idle(),
          .reserved = rows_->reserved()};
}

BlockRef BlockPool::Refer(const BlockRef& of, std::shared_ptr<WindowQuota> quota) {
  MutexLock lock(mutex_);
  return ReferLocked(of, std::move(quota));
}

BlockRef BlockPool::ReferLocked(const BlockRef& of, std::shared_ptr<WindowQuota> quota) {
  const uint32_t block = of.id_;
  PENSTOCK_CHECK(of.pool_ == this);
  PENSTOCK_CHECK_GT(references_[block], 0u);
  if (references_[block]++ == 1 && cached_[block]) --idle_;
  BlockRef reference(this, block);
  if (quota != nullptr) HoldLocked(reference, quota);
  return reference;
}

void BlockPool::HoldLocked(BlockRef& block, const std::shared_ptr<WindowQuota>& quota) {
  rows_->Hold(block.id_);
  ++quota->references_;
  block.quota_ = quota;
}

void BlockPool::DropRowLocked(const BlockRef& block, bool passed) {
  rows_->Drop(block.id_, passed);
  --block.quota_->references_;
}

void BlockPool::ReturnRows(int64_t rows, bool tell) {
  if (rows == 0) return;
  {
    MutexLock lock(mutex_);
    rows_->Return(rows);
  }
  if (tell) freed_waiters_.Raise();
}

void BlockPool::Drop(const BlockRef& block) {
  bool available = false;
  {
    MutexLock lock(mutex_);
    available = DropLocked(block);
  }
  if (available) freed_waiters_.Raise();
}

bool BlockPool::DropLocked(const BlockRef& reference) {
  const uint32_t block = reference.id_;
  PENSTOCK_CHECK_GT(references_[block], 0u);
  if (reference.holds_row()) DropRowLocked(reference);
  const uint32_t left = --references_[block];
  if (left == 1 && cached_[block]) {
    ++idle_;
    return true;
  }
  if (left > 0) return false;
  PENSTOCK_CHECK(!cached_[block]);
  if (leaving_[block]) {
    leaving_[block] = false;
    --leaving_blocks_;
  }
  if (rows_) rows_->Free(block);
  free_.push_back(block);
  return true;
}

std::vector<BlockRef> BlockPool::TakeReserved(int64_t count) {
  std::vector<BlockRef> taken;
  taken.reserve(count);
  MutexLock lock(mutex_);
  PENSTOCK_CHECK_LE(count, reserved_);
  reserved_ -= count;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t block = free_.back();
    free_.pop_back();
    PENSTOCK_CHECK_EQ(references_[block], 0u);
    references_[block] = 1;
    serials_[block].store(++last_serial, std::memory_order_relaxed);
    if (view_.pager != nullptr) view_.pager->OnTaken(block);
    taken.push_back(BlockRef(this, block));
  }
  return taken;
}

void BlockPool::ReturnReserved(int64_t count) {
  if (count == 0) return;
  {
    MutexLock lock(mutex_);
    PENSTOCK_CHECK_LE(count, reserved_);
    reserved_ -= count;
  }
  freed_waiters_.Raise();
}

}  // namespace penstock
