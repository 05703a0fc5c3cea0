#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "kernels/transfer_device.h"
#include "kvstore/wire/loop.h"
#include "kvstore/wire/net/device_probe.h"
#include "kvstore/wire/wire.h"
#include "kvstore/wire/wire_budget.h"

namespace penstock {

// Lanes between processes of one user on one machine. The receiver copies the payload directly from
// the sender's memory, a single copy: by the CPU (process_vm_readv), or between GPUs when both ends
// hold it in GPU memory. Announcements and results use a unix socket, whose end of file tells each
// side at once when the other process is gone. A killed process leaves nothing in the file system.
// docs/adr/0002-same-host-lane.md explains why UCX's shared memory is not used,
// docs/adr/0051-kv-between-gpus-of-one-host.md the part of GPUs.

// The GPU whose memory such lanes may use. A lane uses it after DeviceProbe's pattern has arrived
// intact; until then and after any failure it uses host memory.
struct SameHostGpu {
  std::shared_ptr<const TransferDevice> device;  // null: host memory only
  DeviceProbe* probe = nullptr;                  // of `device`
};

// The receiving side of a wire. Constructed, used and destroyed on the loop's thread. The
// destructor calls OnLost for every message that was announced and has not landed.
class SameHostReceiver {
 public:
  virtual ~SameHostReceiver() = default;
  // The argument of OpenSameHostLane: a random name that no other process has.
  virtual const std::string& name() const = 0;
};
absl::StatusOr<std::unique_ptr<SameHostReceiver>> ListenOnSameHost(WireLoop& loop,
                                                                   WireReceiver& receiver,
                                                                   const SameHostGpu& gpu);

// Opens the sending side. UNAVAILABLE when `name` is not on this machine or network namespace,
// belongs to another user, may not read this process's memory, or does not answer before
// `deadline`. Not on the loop's thread.
struct SameHostLaneArgs {
  WireLoop& loop;
  WireBudget& budget;
  std::string name;
  std::chrono::steady_clock::time_point deadline;
  SameHostGpu gpu;
};
absl::StatusOr<std::unique_ptr<WireLane>> OpenSameHostLane(const SameHostLaneArgs& args);

}  // namespace penstock
