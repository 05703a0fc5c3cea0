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

// The registry of a process's loopback wires, with which tests inject failures. Any thread. Must
// outlive its wires.
class LoopbackHub {
 public:
  // Sets the delay between a message's announcement and its landing, from now on.
  void SetDelay(Duration delay) EXCLUDES(mutex_);
  // Wires made from now on also accept GPU memory. `Copy` replaces memcpy and can read and write
  // every kind of memory.
  using Copy = std::function<void(std::byte* to, const std::byte* from, size_t bytes)>;
  void SetDeviceCopy(Copy copy) EXCLUDES(mutex_);
  // Breaks every lane to `address`, as if that process had died: pending Puts end with UNAVAILABLE,
  // and its receiver gets OnLost for each lost message. New lanes may be opened.
  void BreakLanes(const std::string& address) EXCLUDES(mutex_);
  // While false, Connect to `address` fails, and messages to it are neither announced nor lost.
  void SetReachable(const std::string& address, bool reachable) EXCLUDES(mutex_);

 private:
  friend class LoopbackCore;
  friend class LoopbackWire;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<LoopbackCore>> cores_ GUARDED_BY(mutex_);
  uint64_t next_ GUARDED_BY(mutex_) = 0;
  Copy device_copy_ GUARDED_BY(mutex_);
};

// A wire within one process, with its own thread and the semantics of the other wires. `hub` and
// `receiver` outlive it; its lanes must not.
std::unique_ptr<Wire> MakeLoopbackWire(LoopbackHub& hub, WireReceiver& receiver,
                                       const WireLimits& limits = {});

}  // namespace penstock
