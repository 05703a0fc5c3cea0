#pragma once

#include <atomic>
#include <cstdint>

namespace penstock {

// A heartbeat counter: the thread that runs a loop calls Beat in every iteration, and within long
// iterations. Any thread may read it.
class Progress {
 public:
  void Beat() { beats_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t beats() const { return beats_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> beats_{0};
};

}  // namespace penstock
