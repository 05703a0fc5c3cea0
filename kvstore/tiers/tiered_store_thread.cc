#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/log/log.h"
#include "kernels/buffer.h"
#include "kernels/page_copier.h"
#include "kvstore/tiers/tiered_store.h"

// The code of the store's own thread. Only this thread copies blocks, and it copies without the
// lock: a page is kept by the job's reference, a slot by its pin or by being taken.

namespace penstock {
namespace {

constexpr size_t kPrefaultStepBytes = size_t{32} << 20;
// Freed pages are announced after this number of jobs, and when there are no more jobs.
constexpr size_t kPagesFreedBatch = 16;
constexpr Duration kTick = std::chrono::milliseconds(100);
// The time that a spill waits for a slot whose block is being written to NVMe. Then that block is
// evicted without a copy.
constexpr Duration kSpillWaitMax = std::chrono::milliseconds(50);

}  // namespace

void TieredStore::Start() {
  PENSTOCK_CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void TieredStore::Stop() {
  std::deque<Job> jobs;
  std::deque<WaitingSpill> spills;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    asleep_ = true;  // or will be soon
    WakeThread();
    quiet_changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  {
    MutexLock lock(mutex_);
    jobs.swap(jobs_);
    spills.swap(spills_);
  }
  for (Job& job : jobs) Abandon(std::move(job));
  DeliverEvents();
}

void TieredStore::Run() {
  if (nvme_ != nullptr) nvme_->Start();
  bool going_on = true;
  while (going_on) {
    io_->Poll(Duration::zero());
    if (nvme_ != nullptr && clock_.Now() >= ticked_ + kTick) {
      ticked_ = clock_.Now();
      nvme_->Tick();
    }
    DeliverEvents();
    const bool worked = RunJob() || RunSpill();
    AnnouncePagesFreed(worked ? kPagesFreedBatch : 1);
    if (worked) continue;
    // An unused store takes no memory.
    if (in_use_) in_use_ = arena_->Prefault(kPrefaultStepBytes);
    going_on = Wait();
  }
  Finish();
}

bool TieredStore::Wait() {
  const bool quiet = nvme_ == nullptr || (nvme_->quiet() && demoting_ == 0);
  {
    MutexLock lock(mutex_);
    if (stopping_) return false;
    const bool waiting = spill_waits_since_.has_value();
    if (!jobs_.empty() || !events_.empty() || (!spills_.empty() && !waiting)) return true;
    if (quiet && !waiting && !quiet_) {
      quiet_ = true;
      quiet_changed_.NotifyAll();
    }
    asleep_ = true;
  }
  io_->Poll(in_use_ ? Duration::zero() : kTick);
  MutexLock lock(mutex_);
  asleep_ = false;
  return true;
}

bool TieredStore::RunJob() {
  std::optional<Job> job;
  {
    MutexLock lock(mutex_);
    if (stopping_ || jobs_.empty()) return false;
    quiet_ = false;
    job = std::move(jobs_.front());
    jobs_.pop_front();
  }
  std::visit([this](auto& what) { Do(std::move(what)); }, *job);
  ++freed_;
  return true;
}

void TieredStore::AnnouncePagesFreed(size_t at_least) {
  if (freed_ < at_least) return;
  freed_ = 0;
  if (options_.on_pages_freed) options_.on_pages_freed();
}

// False when there is no spill, or no slot can be freed for it now.
bool TieredStore::RunSpill() {
  std::optional<WaitingSpill> spill;
  std::optional<uint32_t> slot;
  {
    MutexLock lock(mutex_);
    if (stopping_ || spills_.empty()) return false;
    quiet_ = false;
    const SpillBlock& next = spills_.front().block;
    const auto here = dram_->Find(next.name.id);
    if (here) dram_->Touch(*here, next.uses);
    if (!here && !(slot = SlotForSpill())) {
      const bool patient = demoting_ > 0 && (!spill_waits_since_ ||
                                             clock_.Now() < *spill_waits_since_ + kSpillWaitMax);
      if (patient && !spill_waits_since_) spill_waits_since_ = clock_.Now();
      if (patient) return false;
      ++stats_.spills_dropped;
    }
    spill_waits_since_.reset();
    spill = std::move(spills_.front());
    spills_.pop_front();
  }
  if (slot) Keep(*std::move(spill), *slot);
  ++freed_;
  in_use_ = true;
  return true;
}

std::optional<uint32_t> TieredStore::SlotForSpill() {
  if (const auto slot = dram_->Take()) return slot;
  const auto victim = dram_->Victim();
  if (!victim) return std::nullopt;
  const bool impatient = spill_waits_since_ && clock_.Now() >= *spill_waits_since_ + kSpillWaitMax;
  if (DeservesNvme(*victim) && demoting_ > 0 && !impatient) return std::nullopt;
  if (DeservesNvme(*victim)) ++stats_.demotions_dropped;
  Evict(*victim, EvictionReason::kCapacity);
  return dram_->Take();
}

void TieredStore::Keep(WaitingSpill spill, uint32_t slot) {
  const SpillBlock& block = spill.block;
  ToSlot(block.page, slot);
  {
    MutexLock lock(mutex_);
    dram_->Publish(slot, block.name, block.uses, block.partial);
    ++stats_.dram.spills;
    events_.push_back({.name = block.name, .tier = Tier::kDram});
  }
  if (options_.on_spill_time) options_.on_spill_time(Tier::kDram, clock_.Now() - spill.offered);
  DemoteAhead();
}

bool TieredStore::DeservesNvme(uint32_t slot) const {
  return nvme_ != nullptr && dram_->uses(slot) >= options_.nvme_uses_min &&
         !nvme_->index().Contains(dram_->name(slot).id);
}

// Writes the next victims to NVMe in advance, so that a spill finds a free slot.
void TieredStore::DemoteAhead() {
  if (nvme_ == nullptr) return;
  while (nvme_->CanWrite()) {
    std::optional<uint32_t> victim;
    {
      MutexLock lock(mutex_);
      const size_t reserve = std::clamp<size_t>(dram_->slots() / 8, 1, 64);
      if (dram_->free_slots() + demoting_ >= reserve) return;
      victim = dram_->Victim();
      if (!victim || !DeservesNvme(*victim)) return;
      dram_->Pin(*victim);
    }
    Demote(*victim);
  }
}

void TieredStore::Demote(uint32_t slot) {
  if (!Intact(slot)) {  // NVMe would give the damage a checksum of its own.
    {
      MutexLock lock(mutex_);
      dram_->Unpin(slot);
      DropDamaged({&slot, 1});
    }
    return ReportDamage(1);
  }
  ++demoting_;
  BlockName name;
  uint32_t uses = 0;
  bool partial = false;
  {
    MutexLock lock(mutex_);
    name = dram_->name(slot);
    uses = dram_->uses(slot);
    partial = dram_->partial(slot);
  }
  nvme_->Write({.name = name,
                .uses = uses,
                .partial = partial,
                .bytes = SlotBytes(slot),
                .done = [this, slot, uses, offered = clock_.Now()](bool kept) {
                  if (kept && options_.on_spill_time) {
                    options_.on_spill_time(Tier::kNvme, clock_.Now() - offered);
                  }
                  OnDemoted(slot, uses);
                }});
}

void TieredStore::OnDemoted(uint32_t slot, uint32_t uses) {
  --demoting_;
  {
    MutexLock lock(mutex_);
    dram_->Unpin(slot);
    // A block that was used meanwhile stays. While the store is saved, every block stays.
    if (!stopping_ && !dram_->pinned(slot) && dram_->uses(slot) == uses) {
      Evict(slot, EvictionReason::kCapacity);
    }
  }
}

void TieredStore::DeliverEvents() {
  std::vector<BlockEvent> events;
  {
    MutexLock lock(mutex_);
    events.swap(events_);
  }
  if (!on_event_) return;
  for (const BlockEvent& event : events) on_event_(event);
}

struct TieredStore::Reading {
  // The disk cannot read into pages in a GPU, nor into those whose layers lie apart.
  static bool Lands(const PagedKv& kv) { return kv.copier != nullptr || kv.rows != nullptr; }
  // The buffers that NVMe blocks are read into: the pages, or `landing`.
  std::vector<std::byte*> Targets(const PagedKv& kv) {
    const size_t stride = kv.layout.BlockStride();
    if (Lands(kv)) landing = Buffer(from_nvme.size() * stride);
    std::vector<std::byte*> targets;
    for (size_t i = 0; i < from_nvme.size(); ++i) {
      targets.push_back(Lands(kv) ? landing.as<std::byte>() + i * stride
                                  : kv.Block(pages[from_nvme[i]].id()));
    }
    return targets;
  }

  std::vector<BlockRef> pages;
  OnRestored done;
  std::vector<bool> whole;        // by block
  std::vector<size_t> from_nvme;  // indices of blocks
  // Buffer for those blocks if Lands.
  Buffer landing;
  TimePoint asked;
};

void TieredStore::Do(RestoreJob job) {
  auto reading = std::make_shared<Reading>();
  reading->pages = std::move(job.pages);
  reading->done = std::move(job.done);
  reading->asked = job.asked;
  reading->whole.assign(reading->pages.size(), false);
  NvmeRead read;
  std::vector<uint32_t> damaged;
  for (size_t i = 0; i < job.sources.size(); ++i) {
    const uint32_t slot = job.sources[i];
    if (slot == kFromNvme) {
      // It may have been replaced by a partial copy since.
      if (reading->pages[i].holds_row() && !nvme_->index().Whole({&job.ids[i], 1}).front()) break;
      reading->from_nvme.push_back(i);
      read.ids.push_back(job.ids[i]);
    } else if (FromSlot(slot, reading->pages[i])) {
      reading->whole[i] = true;
    } else {
      damaged.push_back(slot);
    }
  }
  read.targets = reading->Targets(pages_);
  {
    MutexLock lock(mutex_);
    for (const uint32_t slot : job.sources) {
      if (slot != kFromNvme) dram_->Unpin(slot);
    }
    DropDamaged(damaged);
    stats_.dram.restores += job.sources.size() - read.ids.size() - damaged.size();
  }
  ReportDamage(damaged.size());
  if (read.ids.empty()) return FinishRestore(*reading, {});
  read.done = [this, reading](const std::vector<NvmeReadState>& states) {
    FinishRestore(*reading, states);
  };
  // `reading` keeps the memory alive into which a late read may still write.
  read.released = [reading] {};
  nvme_->Read(std::move(read));
}

void TieredStore::FinishRestore(Reading& reading, const std::vector<NvmeReadState>& states) {
  RestoreResult result;
  result.pages.resize(reading.pages.size());
  std::vector<bool> late(reading.pages.size(), false);
  for (size_t i = 0; i < states.size(); ++i) {
    const size_t block = reading.from_nvme[i];
    reading.whole[block] = states[i] == NvmeReadState::kWhole;
    late[block] = states[i] == NvmeReadState::kLate;
    if (reading.whole[block] && Reading::Lands(pages_)) {
      const size_t stride = pages_.layout.BlockStride();
      const uint32_t page = reading.pages[block].id();
      WritePages(pages_, {&page, 1}, 0, stride, reading.landing.as<std::byte>() + i * stride);
    }
  }
  for (size_t i = 0; i < reading.pages.size(); ++i) {
    if (!late[i]) result.pages[i] = std::move(reading.pages[i]);
  }
  while (result.whole < reading.whole.size() && reading.whole[result.whole]) ++result.whole;
  ++freed_;  // The requester may have dropped its pages meanwhile.
  if (result.whole > 0 && options_.on_restore_time) {
    options_.on_restore_time(states.empty() ? Tier::kDram : Tier::kNvme,
                             clock_.Now() - reading.asked);
  }
  std::exchange(reading.done, nullptr)(std::move(result));
}

void TieredStore::Do(SwapOutJob job) {
  for (size_t i = 0; i < job.pages.size(); ++i) {
    ToSlot(job.pages[i], job.slots[i]);
  }
}

void TieredStore::Do(SwapInJob job) {
  size_t whole = 0;
  while (whole < job.pages.size() && FromSlot(job.ticket.slots_[whole], job.pages[whole])) ++whole;
  {
    MutexLock lock(mutex_);
    ++stats_.swaps_in;
  }
  ReportDamage(whole < job.pages.size() ? 1 : 0);
  job.ticket = {};
  job.done({.whole = whole, .pages = std::move(job.pages)});
}

void TieredStore::Do(const FreeSlotsJob& job) {
  MutexLock lock(mutex_);
  swap_slots_ -= job.slots.size();
  for (const uint32_t slot : job.slots) dram_->GiveBack(slot);
}

void TieredStore::Do(const ClearJob& job) {
  std::deque<WaitingSpill> spills;
  {
    MutexLock lock(mutex_);
    spills.swap(spills_);
    spill_waits_since_.reset();
    for (uint32_t count = dram_ == nullptr ? 0 : dram_->blocks(); count > 0; --count) {
      const auto victim = dram_->Victim();
      if (!victim) break;
      Evict(*victim, EvictionReason::kCleared);
    }
  }
  if (nvme_ != nullptr) nvme_->Clear();
  DeliverEvents();
  job.done();
}

NvmeEvents TieredStore::EventsOfNvme() {
  return {.stored = [this](const BlockName& name) { OnNvmeChanged(name, Tier::kNvme); },
          .removed = [this](const BlockName& name,
                            EvictionReason) { OnNvmeChanged(name, std::nullopt); },
          .served = [this](bool served) { OnNvmeServed(served); }};
}

void TieredStore::OnNvmeChanged(const BlockName& name, std::optional<Tier> tier) {
  MutexLock lock(mutex_);
  if (nvme_served_ && !dram_->Find(name.id)) events_.push_back({.name = name, .tier = tier});
}

void TieredStore::OnNvmeServed(bool served) {
  const std::vector<BlockName> names = nvme_->index().Names();
  const std::optional<Tier> tier = served ? std::optional(Tier::kNvme) : std::nullopt;
  MutexLock lock(mutex_);
  nvme_served_ = served;
  for (const BlockName& name : names) {
    if (!dram_->Find(name.id)) events_.push_back({.name = name, .tier = tier});
  }
}

// Writes the DRAM tier's blocks that NVMe would admit, the most recently used first, so that a
// restart is warm.
void TieredStore::Save() {
  const TimePoint deadline = clock_.Now() + options_.save_time;
  std::vector<uint32_t> slots;
  {
    MutexLock lock(mutex_);
    for (const uint32_t slot : dram_->Blocks()) {
      if (!DeservesNvme(slot) || dram_->pinned(slot)) continue;
      dram_->Pin(slot);
      slots.push_back(slot);
    }
  }
  size_t next = 0;
  while (next < slots.size() && clock_.Now() < deadline) {
    if (nvme_->CanWrite()) {
      Demote(slots[next++]);
    } else if (io_->open() > 0) {
      io_->Poll(std::chrono::milliseconds(10));
    } else {
      break;  // The tier accepts no writes.
    }
  }
  while (!nvme_->quiet() && clock_.Now() < deadline) io_->Poll(std::chrono::milliseconds(10));
  MutexLock lock(mutex_);
  for (; next < slots.size(); ++next) dram_->Unpin(slots[next]);
}

void TieredStore::Finish() {
  if (nvme_ == nullptr) return;
  if (options_.save_time > Duration::zero()) Save();
  nvme_->BeginStop();
  const TimePoint warn_at = clock_.Now() + std::chrono::seconds(5);
  bool warned = false;
  // The disk may still write into these pages, so they cannot be given back before it has ended.
  while (!nvme_->quiet() || io_->open() > 0) {
    io_->Poll(kTick);
    nvme_->Tick();
    if (warned || clock_.Now() < warn_at) continue;
    LogWarning("store_stop_delayed",
               "stopping waits for {} requests that the disk has not finished", io_->open());
    warned = true;
  }
}

void TieredStore::Abandon(Job job) {
  if (auto* restore = std::get_if<RestoreJob>(&job)) {
    {
      MutexLock lock(mutex_);
      for (const uint32_t slot : restore->sources) {
        if (slot != kFromNvme) dram_->Unpin(slot);
      }
    }
    restore->done({.whole = 0, .pages = std::move(restore->pages)});
  } else if (auto* swap = std::get_if<SwapInJob>(&job)) {
    swap->ticket = {};
    swap->done({.whole = 0, .pages = std::move(swap->pages)});
  } else if (auto* drop = std::get_if<FreeSlotsJob>(&job)) {
    Do(*drop);
  } else if (auto* clear = std::get_if<ClearJob>(&job)) {
    clear->done();
  }
}

void TieredStore::ToSlot(const BlockRef& page, uint32_t slot) {
  const uint32_t id = page.id();
  ReadPages(pages_, {&id, 1}, 0, pages_.layout.BlockStride(), arena_->Slot(slot));
  checksums_[slot] = Crc32c(SlotBytes(slot));
  if (on_filled_) on_filled_(SlotBytes(slot));
}

bool TieredStore::FromSlot(uint32_t slot, const BlockRef& page) const {
  if (!Intact(slot)) return false;
  const uint32_t id = page.id();
  WritePages(pages_, {&id, 1}, 0, pages_.layout.BlockStride(), arena_->Slot(slot));
  return true;
}

bool TieredStore::Intact(uint32_t slot) const {
  return Crc32c(SlotBytes(slot)) == checksums_[slot];
}

std::span<std::byte> TieredStore::SlotBytes(uint32_t slot) const {
  return {arena_->Slot(slot), arena_->slot_bytes()};
}

// A damaged block that another job has pinned is dropped by that job.
void TieredStore::DropDamaged(std::span<const uint32_t> slots) {
  for (const uint32_t slot : slots) {
    if (!dram_->pinned(slot)) Evict(slot, EvictionReason::kCorrupt);
  }
}

void TieredStore::ReportDamage(size_t blocks) {
  if (blocks == 0) return;
  LogWarning("store_blocks_damaged",
             "host memory: {} blocks have a wrong checksum; they become misses", blocks);
  MutexLock lock(mutex_);
  stats_.dram_corrupt += blocks;
}

}  // namespace penstock
