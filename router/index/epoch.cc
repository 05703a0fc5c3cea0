#include "router/index/epoch.h"

#include <malloc.h>

#include <cstdlib>

namespace penstock {
namespace {

constexpr size_t kBytesPerCollect = 128 << 10;

// The slot at which a thread starts to search for a free one: threads are spread over the slots.
size_t FirstSlot(size_t slots) {
  static std::atomic<size_t> next{0};
  thread_local const size_t mine = next.fetch_add(1, std::memory_order_relaxed);
  return mine % slots;
}

}  // namespace

// Why memory retired in epoch r may be freed in epoch r + 2: it was unreachable before the epoch
// became r + 1, so only readers that entered at r or earlier can hold it, and the epoch becomes
// r + 2 only after all of those have left.
EpochDomain::~EpochDomain() {
  for (const Retired& retired : retired_) std::free(retired.memory);
}

std::atomic<uint64_t>& EpochDomain::Enter() {
  for (size_t i = FirstSlot(slots_.size());; i = (i + 1) % slots_.size()) {
    uint64_t free = 0;
    // Synchronizes with the writer that read this slot last (AllReadersAt): the reader sees what
    // that writer did before.
    if (slots_[i].epoch.compare_exchange_strong(free, epoch_.load(std::memory_order_acquire),
                                                std::memory_order_acq_rel)) {
      return slots_[i].epoch;
    }
  }
}

void EpochDomain::Retire(void* memory) {
  MutexLock lock(mutex_);
  retired_.push_back({memory, epoch_.load(std::memory_order_relaxed)});
  bytes_since_collect_ += malloc_usable_size(memory) + sizeof(Retired);
  if (bytes_since_collect_ >= kBytesPerCollect) Collect();
}

void EpochDomain::Collect() {
  bytes_since_collect_ = 0;
  const uint64_t epoch = epoch_.load(std::memory_order_relaxed);
  if (!AllReadersAt(epoch)) return;
  epoch_.store(epoch + 1, std::memory_order_release);
  while (!retired_.empty() && retired_.front().epoch + 2 <= epoch + 1) {
    std::free(retired_.front().memory);
    retired_.pop_front();
  }
}

// Reads each slot with a read-modify-write, so that a reader that enters the slot afterwards sees
// everything that happened before. A plain load would need a fence, which ThreadSanitizer does not
// support.
bool EpochDomain::AllReadersAt(uint64_t epoch) {
  for (Slot& slot : slots_) {
    const uint64_t at = slot.epoch.fetch_add(0, std::memory_order_acq_rel);
    if (at != 0 && at != epoch) return false;
  }
  return true;
}

}  // namespace penstock
