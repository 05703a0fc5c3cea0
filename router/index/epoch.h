#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>

#include "base/mutex.h"

namespace penstock {

// Epoch-based reclamation (K. Fraser, Practical lock-freedom, 2004): readers follow pointers that
// writers replace, without waiting for them. A writer retires the replaced memory, and it is freed
// once every reader that could still see it has left. Any thread.
class EpochDomain {
 public:
  // A read-side critical section: while a guard lives, nothing that its thread finds is freed. Keep
  // it for microseconds only: a guard delays all reclamation.
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
  ~EpochDomain();  // frees everything; no guard may live
  EpochDomain(const EpochDomain&) = delete;
  EpochDomain& operator=(const EpochDomain&) = delete;

  // Frees `memory`, which is malloc's, later. New readers must not be able to find it any more.
  void Retire(void* memory) EXCLUDES(mutex_);

 private:
  struct Retired {
    void* memory;
    uint64_t epoch;
  };
  struct alignas(64) Slot {
    std::atomic<uint64_t> epoch{0};  // the epoch that the reader entered at; 0: no reader
  };

  std::atomic<uint64_t>& Enter();
  void Collect() REQUIRES(mutex_);
  bool AllReadersAt(uint64_t epoch);

  // More slots than threads that read at once. A reader spins while all slots are taken.
  std::array<Slot, 256> slots_;
  std::atomic<uint64_t> epoch_{1};
  Mutex mutex_;
  std::deque<Retired> retired_ GUARDED_BY(mutex_);  // oldest first
  size_t bytes_since_collect_ GUARDED_BY(mutex_) = 0;
};

}  // namespace penstock
