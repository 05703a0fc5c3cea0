#include "kvstore/cache/block_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "base/check.h"

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

}  // namespace

BlockRef::BlockRef(BlockRef&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}

BlockRef& BlockRef::operator=(BlockRef&& other) noexcept {
  // Drops this object's old reference now, not when `other` dies.
  BlockRef moved(std::move(other));
  std::swap(pool_, moved.pool_);
  std::swap(id_, moved.id_);
  return *this;
}

BlockRef::~BlockRef() {
  if (pool_ != nullptr) pool_->Drop(id_);
}

BlockRef BlockRef::Share() const {
  PENSTOCK_CHECK(pool_ != nullptr, "an empty BlockRef is shared");
  pool_->AddReference(id_);
  return BlockRef(pool_, id_);
}

BlockCredit::BlockCredit(BlockCredit&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), blocks_(std::exchange(other.blocks_, 0)) {}

BlockCredit& BlockCredit::operator=(BlockCredit&& other) noexcept {
  // Returns this object's old credit now, not when `other` dies.
  BlockCredit moved(std::move(other));
  std::swap(pool_, moved.pool_);
  std::swap(blocks_, moved.blocks_);
  return *this;
}

BlockCredit::~BlockCredit() {
  if (pool_ != nullptr) pool_->ReturnReserved(blocks_);
}

void BlockCredit::Merge(BlockCredit other) {
  PENSTOCK_CHECK(pool_ == nullptr || other.pool_ == nullptr || pool_ == other.pool_);
  if (pool_ == nullptr) pool_ = other.pool_;
  blocks_ += std::exchange(other.blocks_, 0);
}

std::vector<BlockRef> BlockCredit::Take(int64_t count) {
  PENSTOCK_CHECK_GE(count, 0);
  PENSTOCK_CHECK_LE(count, blocks_);
  if (count == 0) return {};
  blocks_ -= count;
  return pool_->TakeReserved(count);
}

absl::StatusOr<std::unique_ptr<BlockPool>> BlockPool::Create(const KvLayout& layout,
                                                             int64_t blocks) {
  RETURN_IF_ERROR(CheckSize(layout, blocks));
  const auto stride = static_cast<int64_t>(layout.BlockStride());
  const auto bytes = static_cast<size_t>(blocks * stride);
  // Anonymous pages are zero and take memory only once they are touched.
  void* arena = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (arena == MAP_FAILED) {
    return ResourceExhausted(
        "block pool: {} blocks of {} bytes are {:.1f} GiB, which cannot be mapped ({}); "
        "configure fewer blocks",
        blocks, stride, static_cast<double>(bytes) / (int64_t{1} << 30),
        std::generic_category().message(errno));
  }
  // Huge pages are an optimisation only; failure is ignored.
  madvise(arena, bytes, MADV_HUGEPAGE);
  return std::unique_ptr<BlockPool>(new BlockPool(
      PagedKv{.arena = static_cast<std::byte*>(arena), .blocks = blocks, .layout = layout},
      /*owns_arena=*/true));
}

absl::StatusOr<std::unique_ptr<BlockPool>> BlockPool::CreateOver(const PagedKv& pages) {
  RETURN_IF_ERROR(CheckSize(pages.layout, pages.blocks));
  return std::unique_ptr<BlockPool>(new BlockPool(pages, /*owns_arena=*/false));
}

BlockPool::BlockPool(PagedKv view, bool owns_arena)
    : view_(view),
      owns_arena_(owns_arena),
      serials_(std::make_unique<std::atomic<uint64_t>[]>(static_cast<size_t>(view.blocks))),
      references_(view.blocks, 0),
      cached_(view.blocks, false),
      leaving_(view.blocks, false) {
  view_.serials = serials_.get();
  free_.reserve(view.blocks);
  for (int64_t block = view.blocks; block-- > 0;) free_.push_back(static_cast<uint32_t>(block));
}

BlockPool::~BlockPool() {
  PENSTOCK_CHECK_EQ(blocks_used(), 0);
  PENSTOCK_CHECK_EQ(blocks_cached(), 0);
  PENSTOCK_CHECK_EQ(blocks_leaving(), 0);
  PENSTOCK_CHECK_EQ(blocks_reserved(), 0);
  if (!owns_arena_) return;
  munmap(view_.arena, view_.layout.BlockStride() * static_cast<size_t>(view_.blocks));
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

std::vector<BlockRef> BlockPool::Share(std::span<const BlockRef> blocks) {
  std::vector<BlockRef> shared;
  shared.reserve(blocks.size());
  MutexLock lock(mutex_);
  for (const BlockRef& block : blocks) {
    if (!block) {
      shared.emplace_back();
      continue;
    }
    PENSTOCK_CHECK(block.pool_ == this);
    AddReferenceLocked(block.id_);
    shared.push_back(BlockRef(this, block.id_));
  }
  return shared;
}

void BlockPool::DropShared(std::vector<BlockRef> blocks, int64_t obtainable) {
  bool more = false;
  {
    MutexLock lock(mutex_);
    for (BlockRef& block : blocks) {
      if (!block) continue;
      DropLocked(block.id_);
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

void BlockPool::AddReference(uint32_t block) {
  MutexLock lock(mutex_);
  AddReferenceLocked(block);
}

void BlockPool::AddReferenceLocked(uint32_t block) {
  PENSTOCK_CHECK_GT(references_[block], 0u);
  if (references_[block]++ == 1 && cached_[block]) --idle_;
}

void BlockPool::Drop(uint32_t block) {
  bool available = false;
  {
    MutexLock lock(mutex_);
    available = DropLocked(block);
  }
  if (available) freed_waiters_.Raise();
}

bool BlockPool::DropLocked(uint32_t block) {
  PENSTOCK_CHECK_GT(references_[block], 0u);
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
