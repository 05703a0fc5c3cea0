#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "kvstore/tiered_store.h"

// What the store's own thread does. It alone copies blocks, and it copies without the lock: a page
// is held by the job's reference, a slot by its pin or by being taken.

namespace penstock {
namespace {

constexpr size_t kPrefaultStepBytes = size_t{32} << 20;
constexpr Duration kIdle = std::chrono::milliseconds(500);

}  // namespace

void TieredStore::Start() {
  PENSTOCK_CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void TieredStore::Stop() {
  std::deque<Job> jobs;
  std::deque<SpillBlock> spills;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
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
  bool all_resident = arena_ == nullptr;
  while (true) {
    DeliverEvents();
    if (RunJob() || RunSpill()) continue;
    DeliverEvents();
    if (!all_resident) all_resident = !arena_->Prefault(kPrefaultStepBytes);
    MutexLock lock(mutex_);
    busy_ = false;
    if (stopping_) return;
    if (!jobs_.empty() || !spills_.empty() || !events_.empty()) continue;
    changed_.NotifyAll();
    if (all_resident) changed_.WaitFor(mutex_, kIdle);
  }
}

bool TieredStore::RunJob() {
  std::optional<Job> job;
  {
    MutexLock lock(mutex_);
    if (stopping_ || jobs_.empty()) return false;
    busy_ = true;
    job = std::move(jobs_.front());
    jobs_.pop_front();
  }
  std::visit([this](auto& what) { Do(std::move(what)); }, *job);
  return true;
}

bool TieredStore::RunSpill() {
  std::optional<SpillBlock> block;
  {
    MutexLock lock(mutex_);
    if (stopping_ || spills_.empty()) return false;
    busy_ = true;
    block = std::move(spills_.front());
    spills_.pop_front();
  }
  Keep(*std::move(block));
  return true;
}

void TieredStore::DeliverEvents() {
  std::vector<BlockEvent> events;
  {
    MutexLock lock(mutex_);
    events.swap(events_);
    if (!events.empty()) busy_ = true;
  }
  if (!on_event_) return;
  for (const BlockEvent& event : events) on_event_(event);
}

void TieredStore::Do(RestoreJob job) {
  for (size_t i = 0; i < job.pinned.size(); ++i) {
    CopyBlock(Page(job.pages[i]), arena_->Slot(job.pinned[i]));
  }
  {
    MutexLock lock(mutex_);
    for (const uint32_t slot : job.pinned) dram_->Unpin(slot);
    stats_.dram.restores += job.pinned.size();
  }
  job.done({.whole = job.pinned.size(), .pages = std::move(job.pages)});
}

void TieredStore::Do(SwapOutJob job) {
  for (size_t i = 0; i < job.pages.size(); ++i) {
    CopyBlock(arena_->Slot(job.slots[i]), Page(job.pages[i]));
  }
}

void TieredStore::Do(SwapInJob job) {
  for (size_t i = 0; i < job.pages.size(); ++i) {
    CopyBlock(Page(job.pages[i]), arena_->Slot(job.ticket.slots_[i]));
  }
  {
    MutexLock lock(mutex_);
    ++stats_.swaps_in;
  }
  job.ticket = {};
  const size_t whole = job.pages.size();
  job.done({.whole = whole, .pages = std::move(job.pages)});
}

void TieredStore::Do(FreeSlotsJob job) {
  MutexLock lock(mutex_);
  swap_slots_ -= job.slots.size();
  for (const uint32_t slot : job.slots) dram_->GiveBack(slot);
}

void TieredStore::Do(ClearJob job) {
  {
    MutexLock lock(mutex_);
    for (uint32_t count = dram_ == nullptr ? 0 : dram_->blocks(); count > 0; --count) {
      const auto victim = dram_->Victim();
      if (!victim) break;
      Evict(*victim, EvictionReason::kCleared);
    }
  }
  DeliverEvents();
  job.done();
}

void TieredStore::Keep(SpillBlock block) {
  std::optional<uint32_t> slot;
  {
    MutexLock lock(mutex_);
    if (const auto here = dram_->Find(block.name.id)) {
      dram_->Touch(*here, block.uses);
      return;
    }
    slot = dram_->Take();
    if (!slot) {
      if (const auto victim = dram_->Victim()) {
        Evict(*victim, EvictionReason::kCapacity);
        slot = dram_->Take();
      }
    }
    if (!slot) {
      ++stats_.spills_dropped;
      return;
    }
  }
  CopyBlock(arena_->Slot(*slot), Page(block.page));
  MutexLock lock(mutex_);
  dram_->Publish(*slot, block.name, block.uses);
  ++stats_.dram.spills;
  events_.push_back({.name = block.name, .tier = Tier::kDram});
}

void TieredStore::Abandon(Job job) {
  if (auto* restore = std::get_if<RestoreJob>(&job)) {
    {
      MutexLock lock(mutex_);
      for (const uint32_t slot : restore->pinned) dram_->Unpin(slot);
    }
    restore->done({.whole = 0, .pages = std::move(restore->pages)});
  } else if (auto* swap = std::get_if<SwapInJob>(&job)) {
    swap->ticket = {};
    swap->done({.whole = 0, .pages = std::move(swap->pages)});
  } else if (auto* drop = std::get_if<FreeSlotsJob>(&job)) {
    Do(std::move(*drop));
  } else if (auto* clear = std::get_if<ClearJob>(&job)) {
    clear->done();
  }
}

void TieredStore::CopyBlock(std::byte* to, const std::byte* from) const {
  std::memcpy(to, from, pages_.layout.BlockStride());
}

}  // namespace penstock
