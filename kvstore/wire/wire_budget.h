#pragma once

#include <atomic>
#include <cstddef>

#include "base/mutex.h"
#include "base/status.h"

namespace penstock {

// Upper limits on the pending messages of one wire, over all its lanes.
struct WireLimits {
  size_t messages = 256;
  size_t bytes = size_t{256} << 20;  // of payload
};

// Credit-based flow control of a wire: Put takes credit, completion gives it back, and Put is
// refused when no credit is left. Senders are never blocked. Any thread; outlives the wire's lanes.
class WireBudget {
 public:
  explicit WireBudget(WireLimits limits) : limits_(limits) {}

  // RESOURCE_EXHAUSTED names the limit. Each successful Take needs one Give of the same size.
  absl::Status Take(size_t payload_bytes) EXCLUDES(mutex_);
  void Give(size_t payload_bytes) EXCLUDES(mutex_);

  // The number of open lanes, which must be closed before the wire is destroyed.
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

// INVALID_ARGUMENT when a size exceeds kWireHeaderMax or kWirePayloadMax.
absl::Status CheckPutSizes(size_t header_bytes, size_t payload_bytes);

}  // namespace penstock
