#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "kvstore/wire/loop.h"
#include "kvstore/wire/wire.h"
#include "kvstore/wire/wire_budget.h"

namespace penstock {

// Lanes between processes of one user on one machine. The receiver copies the payload straight out
// of the sender's memory (process_vm_readv), in one copy; announcements and results go over a unix
// socket whose end tells each side at once when the other is gone. Nothing is left behind in the
// file system by a process that is killed. Why not UCX: docs/adr/0002-same-host-lane.md.

// The receiving half of a wire. Constructed and destroyed on the loop's thread, where all of it
// runs; ~ tells the receiver of every message that was announced and has not landed.
class SameHostReceiver {
 public:
  virtual ~SameHostReceiver() = default;
  // What OpenSameHostLane takes. Chosen at random: nobody else has it.
  virtual const std::string& name() const = 0;
};
absl::StatusOr<std::unique_ptr<SameHostReceiver>> ListenOnSameHost(WireLoop& loop,
                                                                   WireReceiver& receiver);

// The sending half: UNAVAILABLE when `name` is not on this machine (or not in this network
// namespace), is another user's, may not read our memory, or does not answer until `deadline`.
// Not on the loop's thread.
struct SameHostLaneArgs {
  WireLoop& loop;
  WireBudget& budget;
  std::string name;
  std::chrono::steady_clock::time_point deadline;
};
absl::StatusOr<std::unique_ptr<WireLane>> OpenSameHostLane(const SameHostLaneArgs& args);

}  // namespace penstock
