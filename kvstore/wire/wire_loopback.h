#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvstore/wire/wire.h"
#include "kvstore/wire/wire_budget.h"

namespace penstock {

class LoopbackCore;

// Where the loopback wires of one process find each other, and where a test makes them fail.
// Any thread. Must outlive its wires.
class LoopbackHub {
 public:
  // From now on this much time passes between the announcement of a message and its landing.
  void SetDelay(Duration delay) EXCLUDES(mutex_);
  // Wires that are made from now on take a GPU's memory, too: this moves bytes from and to any
  // memory, in the place of memcpy.
  using Copy = std::function<void(std::byte* to, const std::byte* from, size_t bytes)>;
  void SetDeviceCopy(Copy copy) EXCLUDES(mutex_);
  // Every lane to `address` breaks, as if the process there had died: Puts under way end with
  // UNAVAILABLE, and its receiver is told of every message that was lost. New lanes may be opened.
  void BreakLanes(const std::string& address) EXCLUDES(mutex_);
  // While false, Connect to `address` fails and messages to it are neither announced nor lost.
  void SetReachable(const std::string& address, bool reachable) EXCLUDES(mutex_);

 private:
  friend class LoopbackCore;
  friend class LoopbackWire;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<LoopbackCore>> cores_ GUARDED_BY(mutex_);
  uint64_t next_ GUARDED_BY(mutex_) = 0;
  Copy device_copy_ GUARDED_BY(mutex_);
};

// A wire within one process, with a thread of its own and the semantics of the real ones.
// `receiver` must outlive it; its lanes must not.
std::unique_ptr<Wire> MakeLoopbackWire(LoopbackHub& hub, WireReceiver& receiver,
                                       const WireLimits& limits = {});

}  // namespace penstock
