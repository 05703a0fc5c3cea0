#pragma once

#include <atomic>
#include <cstddef>

#include "base/mutex.h"
#include "base/status.h"

namespace penstock {

// How much one wire may have under way in all its lanes together.
struct WireLimits {
  size_t messages = 256;
  size_t bytes = size_t{256} << 20;  // of payload
};

// Counts what is under way; the door at which Put refuses. Any thread.
class WireBudget {
 public:
  explicit WireBudget(WireLimits limits) : limits_(limits) {}

  // RESOURCE_EXHAUSTED names the limit. A success is undone by Give of the same size.
  absl::Status Take(size_t payload_bytes) EXCLUDES(mutex_);
  void Give(size_t payload_bytes) EXCLUDES(mutex_);

  // The wire's lanes, which must be gone before it.
  void LaneOpened() { ++lanes_; }
  void LaneClosed() { --lanes_; }
  int lanes() const { return lanes_; }

 private:
  const WireLimits limits_;
  std::atomic<int> lanes_{0};
  mutable Mutex mutex_;
  size_t messages_ GUARDED_BY(mutex_) = 0;
  size_t bytes_ GUARDED_BY(mutex_) = 0;
};

// INVALID_ARGUMENT when kWireHeaderMax or kWirePayloadMax is passed.
absl::Status CheckPutSizes(size_t header_bytes, size_t payload_bytes);

}  // namespace penstock
