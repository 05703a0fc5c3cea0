#include "kvstore/tiers/tiered_store.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace penstock {
namespace {

// Distance of prefetches ahead of look-ups, in ids.
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
  SwapTicket moved(std::move(other));  // Drops this object's old slots now, not when `other` dies.
  std::swap(store_, moved.store_);
  std::swap(slots_, moved.slots_);
  return *this;
}

SwapTicket::~SwapTicket() {
  if (store_ != nullptr) store_->DropSwap(std::move(slots_));
}

absl::StatusOr<std::unique_ptr<TieredStore>> TieredStore::Open(const Options& options,
                                                               PagedKv pages, OnBlockEvent on_event,
                                                               Seams seams) {
  std::unique_ptr<TieredStore> store(
      new TieredStore(options, pages, std::move(on_event), std::move(seams)));
  RETURN_IF_ERROR(store->MakeTiers());
  return store;
}

TieredStore::TieredStore(const Options& options, PagedKv pages, OnBlockEvent on_event, Seams seams)
    : options_(options),
      pages_(pages),
      on_event_(std::move(on_event)),
      files_(seams.files ? std::move(seams.files) : std::make_unique<StoreFiles>()),
      io_(std::move(seams.io)),
      on_filled_(std::move(seams.on_filled)) {}

absl::Status TieredStore::MakeTiers() {
  const bool with_nvme = !options_.nvme.directory.empty();
  if (io_ == nullptr) {
    // Without NVMe the queue only serves as the thread's wait.
    ASSIGN_OR_RETURN(io_, with_nvme ? MakeIoQueue(options_.io) : MakeThreadIoQueue(1));
  }
  ASSIGN_OR_RETURN(dram_, MakeDram(options_.dram_bytes, pages_.layout.BlockStride()));
  size_t dram_slots = 0;
  if (dram_ != nullptr) {
    MutexLock lock(mutex_);
    arena_ = &dram_->arena();
    dram_slots = dram_->slots();
    checksums_.resize(dram_slots);
  }
  if (with_nvme && dram_ == nullptr) {
    return InvalidArgument("nvme_dir is set and dram_memory is 0: blocks reach NVMe through DRAM");
  }
  if (!with_nvme) return absl::OkStatus();
  NvmeOptions nvme = options_.nvme;
  nvme.format.layout = pages_.layout;
  nvme.writes_max = std::min<size_t>(nvme.writes_max, std::max<size_t>(1, dram_slots / 2));
  ASSIGN_OR_RETURN(nvme_, NvmeTier::Create(std::move(nvme), *files_, *io_, clock_, EventsOfNvme()));
  return absl::OkStatus();
}

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
  while (result.blocks < ids.size()) {
    if (result.blocks + kPrefetchAhead < ids.size()) {
      dram_->Prefetch(ids[result.blocks + kPrefetchAhead]);
    }
    if (const auto slot = dram_->Find(ids[result.blocks])) {
      result.whole.push_back(!dram_->partial(*slot));
      ++result.blocks;
      ++result.dram;
      continue;
    }
    // Continues in NVMe; DRAM is tried again after the NVMe run.
    const size_t run = nvme_ != nullptr && nvme_served_
                           ? nvme_->index().CountLeading(ids.subspan(result.blocks))
                           : 0;
    if (run == 0) break;
    const std::vector<bool> whole = nvme_->index().Whole(ids.subspan(result.blocks, run));
    result.whole.insert(result.whole.end(), whole.begin(), whole.end());
    result.blocks += run;
    result.nvme += run;
  }
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
  spills_.push_back({.block = std::move(block), .offered = clock_.Now()});
  WakeThread();
  return true;
}

void TieredStore::Restore(std::vector<BlockId> ids, std::vector<BlockRef> pages, OnRestored done) {
  PENSTOCK_CHECK_EQ(ids.size(), pages.size());
  Job job = RestoreJob{std::move(ids), {}, std::move(pages), std::move(done), clock_.Now()};
  {
    MutexLock lock(mutex_);
    if (!stopping_) PinHits(std::get<RestoreJob>(job));
    if (Push(job)) return;
  }
  Abandon(std::move(job));
}

void TieredStore::PinHits(RestoreJob& job) {
  size_t from_nvme = 0;
  for (size_t i = 0; i < job.ids.size(); ++i) {
    const BlockId& id = job.ids[i];
    const auto slot = dram_ == nullptr ? std::nullopt : dram_->Find(id);
    if (!slot && !OnNvme(id)) break;
    if (slot && dram_->partial(*slot) && job.pages[i].holds_row()) break;
    if (slot) dram_->Pin(*slot);
    if (!slot) ++from_nvme;
    job.sources.push_back(slot.value_or(kFromNvme));
  }
  // From tail to head, so that no block becomes older than those that depend on it.
  for (size_t i = job.sources.size(); i-- > 0;) {
    if (job.sources[i] != kFromNvme) dram_->Touch(job.sources[i]);
  }
  stats_.misses += job.ids.size() - job.sources.size();
  stats_.dram.hits += job.sources.size() - from_nvme;
  stats_.nvme_hits += from_nvme;
}

void TieredStore::Touch(std::span<const BlockId> ids) {
  if (dram_ == nullptr) return;
  MutexLock lock(mutex_);
  for (size_t i = ids.size(); i-- > 0;) {
    if (const auto slot = dram_->Find(ids[i])) dram_->Touch(*slot);
  }
}

int64_t TieredStore::swap_blocks_max() const {
  return arena_ == nullptr ? 0 : static_cast<int64_t>(options_.swap_share * arena_->slots());
}

absl::StatusOr<SwapTicket> TieredStore::SwapOut(std::vector<BlockRef>& pages) {
  if (dram_ == nullptr) return FailedPrecondition("swap: there is no DRAM tier (dram_memory is 0)");
  MutexLock lock(mutex_);
  if (stopping_) return Unavailable("swap: the store is stopped");
  const auto limit = static_cast<size_t>(swap_blocks_max());
  std::vector<uint32_t> slots;
  while (slots.size() < pages.size() && swap_slots_ + slots.size() < limit) {
    const auto slot = TakeSlot();
    if (!slot) break;
    slots.push_back(*slot);
  }
  if (slots.size() < pages.size()) {
    for (const uint32_t slot : slots) dram_->GiveBack(slot);
    ++stats_.swaps_refused;
    return ResourceExhausted("swap: {} blocks requested, {} of {} slots are in use", pages.size(),
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
  quiet_ = false;  // outdated
  WakeThread();
  while (!stopping_ && !(quiet_ && jobs_.empty() && spills_.empty() && events_.empty())) {
    quiet_changed_.Wait(mutex_);
  }
}

std::vector<BlockEvent> TieredStore::Snapshot() const {
  std::vector<BlockEvent> events;
  if (dram_ == nullptr) return events;
  MutexLock lock(mutex_);
  for (const BlockName& name : dram_->Names()) {
    events.push_back({.name = name, .tier = Tier::kDram});
  }
  if (nvme_ == nullptr || !nvme_served_) return events;
  for (const BlockName& name : nvme_->index().Names()) {
    if (!dram_->Find(name.id)) events.push_back({.name = name, .tier = Tier::kNvme});
  }
  return events;
}

StoreStats TieredStore::stats() const {
  StoreStats stats;
  MutexLock lock(mutex_);
  stats = stats_;
  stats.swap_slots = swap_slots_;
  if (nvme_ != nullptr) stats.nvme = nvme_->stats();
  stats.nvme.tier.hits = stats_.nvme_hits;
  stats.io_backend = io_->backend();
  if (dram_ == nullptr) return stats;
  stats.dram.bytes_total = arena_->slot_bytes() * dram_->slots();
  stats.dram.bytes_used = arena_->slot_bytes() * (dram_->slots() - dram_->free_slots());
  stats.dram.blocks = dram_->blocks();
  return stats;
}

bool TieredStore::Push(Job& job) {
  if (stopping_) return false;
  jobs_.push_back(std::move(job));
  WakeThread();
  return true;
}

void TieredStore::WakeThread() {
  if (std::exchange(asleep_, false) && io_ != nullptr) io_->Wake();
}

bool TieredStore::OnNvme(const BlockId& id) const {
  return nvme_ != nullptr && nvme_served_ && nvme_->index().Contains(id);
}

void TieredStore::DropSwap(std::vector<uint32_t> slots) {
  MutexLock lock(mutex_);
  Job job = FreeSlotsJob{std::move(slots)};
  if (Push(job)) return;
  // The thread has ended or is ending, and no longer copies into the slots.
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
  const BlockName& name = dram_->name(slot);
  events_.push_back(
      {.name = name, .tier = OnNvme(name.id) ? std::optional(Tier::kNvme) : std::nullopt});
  dram_->Withdraw(slot);
  dram_->GiveBack(slot);
  ++stats_.dram.evictions[static_cast<size_t>(reason)];
}

}  // namespace penstock
