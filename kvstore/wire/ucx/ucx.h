#pragma once

#include <memory>
#include <string>

#include "kernels/transfer_device.h"
#include "kvstore/wire/nccl/nccl_channel.h"
#include "kvstore/wire/wire.h"
#include "kvstore/wire/wire_budget.h"

namespace penstock {

struct UcxWireOptions {
  // Where peers reach us: "host", "host:port", "interface" or "interface:port". Port 0, or none,
  // takes a free one. With an address of all interfaces ("0.0.0.0", "::"), the first that is up and
  // is not loopback is advertised.
  std::string listen = "127.0.0.1";
  // "auto": the same-host lane where the peer is on this machine and lets us, else UCX.
  // "tcp": UCX only. "shm": the same-host lane only; other hosts are UNAVAILABLE. "nccl": as auto,
  // and NCCL for the large messages to other hosts that have it, too, in the same version.
  std::string lanes = "auto";
  WireLimits limits;
  // By way of which NCCL moves bytes, and whose memory payloads may be in where UCX reaches it:
  // then Wire::TakesDeviceMemory. Not so with "nccl", whose pieces pass through the host. Lanes of
  // one host share the host's memory only.
  std::shared_ptr<const TransferDevice> gpu = nullptr;
  NcclOptions nccl = {};
};

// The wire between processes. UCX uses TCP on the interface that has the address of `listen`,
// unless UCX_TLS and UCX_NET_DEVICES stand in the environment: that is how an operator names RDMA
// devices. `receiver` must outlive the wire, its lanes must not. INVALID_ARGUMENT names the option;
// UNAVAILABLE when the address cannot be listened on; FAILED_PRECONDITION when there is no NCCL, or
// no GPU for it.
absl::StatusOr<std::unique_ptr<Wire>> MakeUcxWire(const UcxWireOptions& options,
                                                  WireReceiver& receiver);

}  // namespace penstock
