#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>

#include "base/mutex.h"

namespace penstock {

// Lets readers follow pointers that writers replace, without ever waiting for them: what was
// replaced is freed once every reader that could still see it has left (epoch-based reclamation).
// Any thread.
class EpochDomain {
 public:
  // While one lives, nothing that its thread finds is freed. Keep it for microseconds.
  class Guard {
   public:
    explicit Guard(EpochDomain& domain) : slot_(domain.Enter()) {}
    ~Guard() { slot_.store(0, std::memory_order_release); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::atomic<uint64_t>& slot_;
  };

  EpochDomain() = default;
  ~EpochDomain();  // no guard lives, and nothing is looked at any more
  EpochDomain(const EpochDomain&) = delete;
  EpochDomain& operator=(const EpochDomain&) = delete;

  // `memory`, of malloc, which no new reader can find any more.
  void Retire(void* memory) EXCLUDES(mutex_);

 private:
  struct Retired {
    void* memory;
    uint64_t epoch;
  };
  struct alignas(64) Slot {
    std::atomic<uint64_t> epoch{0};  // 0: nobody is in
  };

  std::atomic<uint64_t>& Enter();
  void Collect() REQUIRES(mutex_);
  bool AllReadersAt(uint64_t epoch);

  // More than there are threads that look something up at once; at the bound a reader spins.
  std::array<Slot, 256> slots_;
  std::atomic<uint64_t> epoch_{1};
  Mutex mutex_;
  std::deque<Retired> retired_ GUARDED_BY(mutex_);  // oldest first
  size_t bytes_since_collect_ GUARDED_BY(mutex_) = 0;
};

}  // namespace penstock
