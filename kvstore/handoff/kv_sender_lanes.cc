#include <utility>

#include "kvstore/handoff/kv_sender.h"

// KvSender's lanes: one to each peer, from the first credit until it is idle, broken or stuck.

namespace penstock {
namespace {

// After a handoff is cancelled, its Puts may end by themselves for this time. Then the lane is
// closed, which also ends other handoffs' Puts on it; they are retried.
constexpr Duration kGraceOfPuts = std::chrono::seconds(1);

}  // namespace

// Keeps one lane to each peer as long as handoffs need it.
bool KvSender::ConnectLanes() {
  std::set<std::string> missing;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, handoff] : handoffs_) {
      if (handoff.machine.over() || handoff.wire_address.empty()) continue;
      if (!lanes_.contains(handoff.wire_address)) missing.insert(handoff.wire_address);
    }
  }
  const int64_t timeout_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.connect_timeout).count();
  for (const std::string& address : missing) {
    auto wire = wire_.Connect(address, timeout_ms);
    if (wire.ok()) {
      lanes_[address] = Lane{.wire = *std::move(wire), .used_at = clock_.Now()};
      continue;
    }
    const absl::Status why =
        Unavailable("no lane to the decode worker: {}", Message(wire.status()));
    MutexLock lock(mutex_);
    for (auto& [key, handoff] : handoffs_) {
      if (handoff.wire_address == address) Perform(handoff, handoff.machine.Cancel(why));
    }
  }
  return !missing.empty();
}

bool KvSender::CloseLanes() {
  const std::vector<std::string> addresses = LanesToClose();
  for (const std::string& address : addresses) CloseLane(address);
  return !addresses.empty();
}

// The lanes that are broken, idle, or have a Put that does not end.
std::vector<std::string> KvSender::LanesToClose() {
  const TimePoint now = clock_.Now();
  std::set<std::string> busy;
  std::set<std::string> stuck = std::exchange(broken_, {});
  MutexLock lock(mutex_);
  for (const auto& [id, slab] : puts_) {
    busy.insert(slab->address);
    const Handoff& handoff = handoffs_.at(slab->key);
    const bool given_up =
        handoff.machine.over() && (handoff.peer_gone || now - handoff.over_at > kGraceOfPuts);
    if (given_up || now - slab->put_at > options_.put_timeout) stuck.insert(slab->address);
  }
  for (const auto& [address, lane] : lanes_) {
    if (!busy.contains(address) && now - lane.used_at > options_.lane_idle) stuck.insert(address);
  }
  std::vector<std::string> addresses;
  for (const std::string& address : stuck) {
    if (lanes_.contains(address)) addresses.push_back(address);
  }
  return addresses;
}

// By value: the argument may be the key of the lane that is erased here.
void KvSender::CloseLane(std::string address) {  // NOLINT(performance-unnecessary-value-param)
  // Without the lock: every Put ends here, and OnPutEnded takes the lock.
  { const Lane closed = std::move(lanes_.extract(address).mapped()); }
  MutexLock lock(mutex_);
  links_.Forget(address);
}

}  // namespace penstock
