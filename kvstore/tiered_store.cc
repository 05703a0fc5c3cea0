#include "kvstore/tiered_store.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace penstock {
namespace {

// How far ahead of a look-up memory is asked for.
constexpr size_t kPrefetchAhead = 12;

absl::StatusOr<std::unique_ptr<DramTier>> MakeDram(uint64_t bytes, size_t slot_bytes) {
  if (bytes == 0) return std::unique_ptr<DramTier>();
  const uint64_t slots = bytes / slot_bytes;
  if (slots < 1 || slots > UINT32_MAX - 1) {
    return InvalidArgument("DRAM tier: {} hold {} blocks of {}; the limits are 1 and 2^32 - 2",
                           FormatBytes(bytes), slots, FormatBytes(slot_bytes));
  }
  const auto count = static_cast<uint32_t>(slots);
  ASSIGN_OR_RETURN(auto arena, SlotArena::Create(slot_bytes, count));
  return std::make_unique<DramTier>(std::move(arena), MakeLruOrder(count));
}

}  // namespace

SwapTicket::SwapTicket(SwapTicket&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)), slots_(std::exchange(other.slots_, {})) {}

SwapTicket& SwapTicket::operator=(SwapTicket&& other) noexcept {
  SwapTicket moved(std::move(other));  // So that what was here goes now, and not with `other`.
  std::swap(store_, moved.store_);
  std::swap(slots_, moved.slots_);
  return *this;
}

SwapTicket::~SwapTicket() {
  if (store_ != nullptr) store_->DropSwap(std::move(slots_));
}

absl::StatusOr<std::unique_ptr<TieredStore>> TieredStore::Open(const Options& options,
                                                               PagedKv pages,
                                                               OnBlockEvent on_event) {
  ASSIGN_OR_RETURN(auto dram, MakeDram(options.dram_bytes, pages.layout.BlockStride()));
  return std::unique_ptr<TieredStore>(
      new TieredStore(options, pages, std::move(dram), std::move(on_event)));
}

TieredStore::TieredStore(const Options& options, PagedKv pages, std::unique_ptr<DramTier> dram,
                         OnBlockEvent on_event)
    : options_(options),
      pages_(pages),
      on_event_(std::move(on_event)),
      dram_(std::move(dram)),
      arena_(dram_ == nullptr ? nullptr : &dram_->arena()) {}

TieredStore::~TieredStore() {
  Stop();
  MutexLock lock(mutex_);
  PENSTOCK_CHECK_EQ(swap_slots_, 0u);
}

FindResult TieredStore::Find(std::span<const BlockId> ids) const {
  FindResult result;
  if (dram_ == nullptr) return result;
  MutexLock lock(mutex_);
  for (size_t i = 0; i < std::min(kPrefetchAhead, ids.size()); ++i) dram_->Prefetch(ids[i]);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i + kPrefetchAhead < ids.size()) dram_->Prefetch(ids[i + kPrefetchAhead]);
    if (!dram_->Find(ids[i])) break;
    ++result.dram;
  }
  result.blocks = result.dram;
  return result;
}

bool TieredStore::Spill(SpillBlock block) {
  if (dram_ == nullptr) return false;
  MutexLock lock(mutex_);
  if (stopping_) return false;
  if (const auto slot = dram_->Find(block.name.id)) {
    dram_->Touch(*slot, block.uses);
    return true;
  }
  if (spills_.size() >= options_.spills_max) {
    ++stats_.spills_refused;
    return false;
  }
  spills_.push_back(std::move(block));
  changed_.NotifyAll();
  return true;
}

void TieredStore::Restore(std::vector<BlockId> ids, std::vector<BlockRef> pages, OnRestored done) {
  PENSTOCK_CHECK_EQ(ids.size(), pages.size());
  Job job = RestoreJob{std::move(ids), {}, std::move(pages), std::move(done)};
  {
    MutexLock lock(mutex_);
    if (!stopping_) PinHits(std::get<RestoreJob>(job));
    if (Push(job)) return;
  }
  Abandon(std::move(job));
}

void TieredStore::PinHits(RestoreJob& job) {
  for (const BlockId& id : job.ids) {
    const auto slot = dram_ == nullptr ? std::nullopt : dram_->Find(id);
    if (!slot) break;
    dram_->Pin(*slot);
    job.pinned.push_back(*slot);
  }
  // From the tail, so that a block never becomes older than those that need it.
  for (size_t i = job.pinned.size(); i-- > 0;) dram_->Touch(job.pinned[i]);
  stats_.misses += job.ids.size() - job.pinned.size();
  stats_.dram.hits += job.pinned.size();
}

void TieredStore::Touch(std::span<const BlockId> ids) {
  if (dram_ == nullptr) return;
  MutexLock lock(mutex_);
  for (size_t i = ids.size(); i-- > 0;) {
    if (const auto slot = dram_->Find(ids[i])) dram_->Touch(*slot);
  }
}

absl::StatusOr<SwapTicket> TieredStore::SwapOut(std::vector<BlockRef>& pages) {
  if (dram_ == nullptr) return FailedPrecondition("swap: there is no DRAM tier (dram_memory is 0)");
  MutexLock lock(mutex_);
  if (stopping_) return Unavailable("swap: the store is stopped");
  const auto limit = static_cast<size_t>(options_.swap_share * dram_->slots());
  std::vector<uint32_t> slots;
  while (slots.size() < pages.size() && swap_slots_ + slots.size() < limit) {
    const auto slot = TakeSlot();
    if (!slot) break;
    slots.push_back(*slot);
  }
  if (slots.size() < pages.size()) {
    for (const uint32_t slot : slots) dram_->GiveBack(slot);
    ++stats_.swaps_refused;
    return ResourceExhausted("swap: {} blocks are wanted, {} of {} are swapped out", pages.size(),
                             swap_slots_, limit);
  }
  swap_slots_ += slots.size();
  ++stats_.swaps_out;
  Job job = SwapOutJob{slots, std::exchange(pages, {})};
  Push(job);
  return SwapTicket(this, std::move(slots));
}

void TieredStore::SwapIn(SwapTicket ticket, std::vector<BlockRef> pages, OnRestored done) {
  PENSTOCK_CHECK(ticket.store_ == this);
  PENSTOCK_CHECK_EQ(ticket.blocks(), pages.size());
  Job job = SwapInJob{std::move(ticket), std::move(pages), std::move(done)};
  {
    MutexLock lock(mutex_);
    if (Push(job)) return;
  }
  Abandon(std::move(job));
}

void TieredStore::Clear(std::function<void()> done) {
  Job job = ClearJob{std::move(done)};
  {
    MutexLock lock(mutex_);
    if (Push(job)) return;
  }
  Abandon(std::move(job));
}

void TieredStore::WaitUntilQuiet() {
  MutexLock lock(mutex_);
  while (!stopping_ && (busy_ || !jobs_.empty() || !spills_.empty() || !events_.empty())) {
    changed_.Wait(mutex_);
  }
}

std::vector<BlockEvent> TieredStore::Snapshot() const {
  std::vector<BlockEvent> events;
  if (dram_ == nullptr) return events;
  MutexLock lock(mutex_);
  for (const BlockName& name : dram_->Names()) {
    events.push_back({.name = name, .tier = Tier::kDram});
  }
  return events;
}

StoreStats TieredStore::stats() const {
  MutexLock lock(mutex_);
  StoreStats stats = stats_;
  stats.swap_slots = swap_slots_;
  if (dram_ == nullptr) return stats;
  stats.dram.bytes_total = arena_->slot_bytes() * dram_->slots();
  stats.dram.bytes_used = arena_->slot_bytes() * (dram_->slots() - dram_->free_slots());
  stats.dram.blocks = dram_->blocks();
  return stats;
}

bool TieredStore::Push(Job& job) {
  if (stopping_) return false;
  jobs_.push_back(std::move(job));
  changed_.NotifyAll();
  return true;
}

void TieredStore::DropSwap(std::vector<uint32_t> slots) {
  MutexLock lock(mutex_);
  Job job = FreeSlotsJob{std::move(slots)};
  if (Push(job)) return;
  // The thread is gone or going, and no longer copies into them.
  auto& dropped = std::get<FreeSlotsJob>(job).slots;
  swap_slots_ -= dropped.size();
  for (const uint32_t slot : dropped) dram_->GiveBack(slot);
}

std::optional<uint32_t> TieredStore::TakeSlot() {
  if (const auto slot = dram_->Take()) return slot;
  const auto victim = dram_->Victim();
  if (!victim) return std::nullopt;
  Evict(*victim, EvictionReason::kSwap);
  return dram_->Take();
}

void TieredStore::Evict(uint32_t slot, EvictionReason reason) {
  events_.push_back({.name = dram_->name(slot), .tier = std::nullopt});
  dram_->Withdraw(slot);
  dram_->GiveBack(slot);
  ++stats_.dram.evictions[static_cast<size_t>(reason)];
}

}  // namespace penstock
