#include "router/index/epoch.h"

#include <malloc.h>

#include <cstdlib>

namespace penstock {
namespace {

constexpr size_t kBytesPerCollect = 128 << 10;

// Spreads the threads over the slots.
size_t FirstSlot(size_t slots) {
  static std::atomic<size_t> next{0};
  thread_local const size_t mine = next.fetch_add(1, std::memory_order_relaxed);
  return mine % slots;
}

}  // namespace

// Memory retired in epoch r was out of reach before the epoch became r + 1, so only readers that
// entered at r or before can hold it. The epoch becomes r + 2 only after all of those have left.
EpochDomain::~EpochDomain() {
  for (const Retired& retired : retired_) std::free(retired.memory);
}

std::atomic<uint64_t>& EpochDomain::Enter() {
  for (size_t i = FirstSlot(slots_.size());; i = (i + 1) % slots_.size()) {
    uint64_t free = 0;
    // Acquires what the writer that looked at this slot last had done before (AllReadersAt).
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

// A read-modify-write, so that a reader that enters a slot after this look also sees everything
// that happened before it. A plain load would need a fence, which ThreadSanitizer does not know.
bool EpochDomain::AllReadersAt(uint64_t epoch) {
  for (Slot& slot : slots_) {
    const uint64_t at = slot.epoch.fetch_add(0, std::memory_order_acq_rel);
    if (at != 0 && at != epoch) return false;
  }
  return true;
}

}  // namespace penstock
