#include "router/index/run_table.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/check.h"

namespace penstock {

RunTable::~RunTable() {
  for (const std::atomic<Chunk*>& slot : chunks_) {
    const std::unique_ptr<Chunk> chunk(slot.load());
    if (chunk == nullptr) continue;
    for (const std::atomic<const PrefixRun*>& entry : *chunk) {
      const PrefixRun* run = entry.load();
      if (run == nullptr) continue;
      std::free(RunIds::Of(run->ids()));
      std::free(const_cast<PrefixRun*>(run));
    }
  }
}

uint32_t RunTable::Allocate() {
  MutexLock lock(mutex_);
  if (!free_.empty()) {
    const uint32_t number = free_.back();
    free_.pop_back();
    return number;
  }
  if (next_ == BlockPlace::kRunsMax) return 0;
  std::atomic<Chunk*>& chunk = chunks_[next_ / kChunk];
  if (chunk.load() == nullptr) chunk.store(new Chunk{}, std::memory_order_release);
  return next_++;
}

void RunTable::Set(uint32_t number, const PrefixRun* run) {
  (*chunks_[number / kChunk].load())[number % kChunk].store(run, std::memory_order_release);
}

void RunTable::Free(uint32_t number) {
  MutexLock lock(mutex_);
  free_.push_back(number);
}

uint32_t RunTable::end() const {
  MutexLock lock(mutex_);
  return next_;
}

RunIds* RunIds::New(uint32_t capacity, std::span<const BlockId> ids) {
  void* memory = std::malloc(sizeof(RunIds) + capacity * sizeof(BlockId));
  PENSTOCK_CHECK(memory != nullptr, "out of memory");
  auto* made = new (memory) RunIds{capacity, static_cast<uint32_t>(ids.size())};
  std::uninitialized_copy(ids.begin(), ids.end(), made->ids());
  return made;
}

}  // namespace penstock
