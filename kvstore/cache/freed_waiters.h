#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "base/mutex.h"

namespace penstock {

// Requests that wait until blocks of a pool come free. Callbacks run on a thread of this object,
// without locks, because blocks are dropped by threads that hold locks of their own. The thread
// starts with the first request that waits. Any thread.
class FreedWaiters {
 private:
  struct State;

 public:
  // A registration. Its destruction ends it, although a callback that has begun goes on.
  // Move-only; may outlive the FreedWaiters.
  class Wait {
   public:
    Wait() = default;
    Wait(Wait&& other) noexcept;
    Wait& operator=(Wait&& other) noexcept;
    ~Wait();

   private:
    friend class FreedWaiters;
    Wait(std::shared_ptr<State> state, uint64_t id) : state_(std::move(state)), id_(id) {}
    std::shared_ptr<State> state_;
    uint64_t id_ = 0;
  };

  FreedWaiters();
  ~FreedWaiters();  // Waits for a callback that has begun, and drops the others.

  // The number of times that blocks have come free.
  uint64_t count() const;
  // Blocks have come free. The caller may hold any lock.
  void Raise();
  // Calls `on_freed` once, as soon as count() is not `seen`. A caller that reads count() before it
  // looks for blocks misses no change. `on_freed` must not block. The callers bound their number.
  [[nodiscard]] Wait WhenFreed(uint64_t seen, std::function<void()> on_freed);

 private:
  void Run();

  const std::shared_ptr<State> state_;
  std::thread thread_;  // guarded by the state's mutex until the destructor
};

}  // namespace penstock
