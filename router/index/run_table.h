#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "router/index/prefix_run.h"

namespace penstock {

// The runs by number. Numbers of removed runs are reused, so a reader that got a number from the
// directory must compare ids. Get is for any thread that holds an EpochDomain::Guard; Set and Free
// need the run's lock.
class RunTable {
 public:
  RunTable() = default;
  ~RunTable();  // frees the runs and their ids
  RunTable(const RunTable&) = delete;
  RunTable& operator=(const RunTable&) = delete;

  // nullptr when the number has no run.
  const PrefixRun* Get(uint32_t number) const {
    const Chunk* chunk = chunks_[number / kChunk].load(std::memory_order_acquire);
    return (*chunk)[number % kChunk].load(std::memory_order_acquire);
  }
  Mutex& LockOf(uint32_t number) const { return locks_[number % locks_.size()]; }

  // Reserves a number, which has no run yet; 0 when all are in use.
  uint32_t Allocate() EXCLUDES(mutex_);
  void Set(uint32_t number, const PrefixRun* run);
  // Releases a number whose run is nullptr.
  void Free(uint32_t number) EXCLUDES(mutex_);
  // An upper bound of all numbers ever reserved.
  uint32_t end() const EXCLUDES(mutex_);

 private:
  static constexpr uint32_t kChunk = 4096;
  using Chunk = std::array<std::atomic<const PrefixRun*>, kChunk>;

  std::array<std::atomic<Chunk*>, BlockPlace::kRunsMax / kChunk> chunks_{};
  mutable std::array<Mutex, 64> locks_;
  mutable Mutex mutex_;
  std::vector<uint32_t> free_ GUARDED_BY(mutex_);
  uint32_t next_ GUARDED_BY(mutex_) = 1;
};

// The ids of a run: one malloc with a header that only writers read, then the ids. Several versions
// of a run may share it.
struct RunIds {
  uint32_t capacity;  // ids
  uint32_t used;      // ids ever written; they are not written again

  BlockId* ids() { return reinterpret_cast<BlockId*>(this + 1); }
  static RunIds* New(uint32_t capacity, std::span<const BlockId> ids);
  static RunIds* Of(const BlockId* ids) {
    return reinterpret_cast<RunIds*>(const_cast<BlockId*>(ids)) - 1;
  }
};

}  // namespace penstock
