#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "router/index/prefix_run.h"

namespace penstock {

// Runs by number. Numbers of runs that are gone are given out again: whoever finds a run by a
// number he read elsewhere compares ids. Reading is for any thread under an EpochDomain::Guard;
// changing a run, for who holds its lock.
class RunTable {
 public:
  RunTable() = default;
  ~RunTable();  // frees the runs and their ids
  RunTable(const RunTable&) = delete;
  RunTable& operator=(const RunTable&) = delete;

  // Null where there is none.
  const PrefixRun* Get(uint32_t number) const {
    const Chunk* chunk = chunks_[number / kChunk].load(std::memory_order_acquire);
    return (*chunk)[number % kChunk].load(std::memory_order_acquire);
  }
  Mutex& LockOf(uint32_t number) const { return locks_[number % locks_.size()]; }

  // A number without a run yet; 0 when all are taken.
  uint32_t Allocate() EXCLUDES(mutex_);
  void Set(uint32_t number, const PrefixRun* run);
  // Of a number whose run is null.
  void Free(uint32_t number) EXCLUDES(mutex_);
  // Numbers below this one have been given out.
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

// The ids of a run in one piece of malloc, with what only writers look at in front of them.
struct RunIds {
  uint32_t capacity;
  uint32_t used;  // ever written; nothing below it is written again

  BlockId* ids() { return reinterpret_cast<BlockId*>(this + 1); }
  static RunIds* New(uint32_t capacity, std::span<const BlockId> ids);
  static RunIds* Of(const BlockId* ids) {
    return reinterpret_cast<RunIds*>(const_cast<BlockId*>(ids)) - 1;
  }
};

}  // namespace penstock
