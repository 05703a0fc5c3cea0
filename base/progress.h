#pragma once

#include <atomic>
#include <cstdint>

namespace penstock {

// A thread's sign of life: whoever owns a loop beats at every turn, and within turns that are long.
// Any thread.
class Progress {
 public:
  void Beat() { beats_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t beats() const { return beats_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> beats_{0};
};

}  // namespace penstock
