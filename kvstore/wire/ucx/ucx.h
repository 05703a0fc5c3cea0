#pragma once

#include <memory>
#include <string>

#include "kernels/transfer_device.h"
#include "kvstore/wire/nccl/nccl_channel.h"
#include "kvstore/wire/wire.h"
#include "kvstore/wire/wire_budget.h"

namespace penstock {

// This room moves bytes between processes, on one host or several: lanes over UCX, over NCCL beside
// UCX, and over the kernel's cross-process reads. It implements Wire and knows nothing of slabs'
// contents, handoffs or caches. Only ucx.cc includes UCX's headers.

// The options of MakeUcxWire.
struct UcxWireOptions {
  // The address for peers: "host", "host:port", "interface" or "interface:port". Without a port, or
  // with port 0, a free port is used. For "0.0.0.0" or "::" the first interface that is up and not
  // loopback is advertised.
  std::string listen = "127.0.0.1";
  // "auto": the same-host lane when the peer is on this machine and permits it, else UCX. "tcp":
  // UCX only. "shm": the same-host lane only; peers on other hosts are UNAVAILABLE. "nccl": as
  // auto, and NCCL for large messages to other hosts with the same version of NCCL.
  std::string lanes = "auto";
  WireLimits limits;
  // The GPU through which NCCL moves bytes, and whose memory payloads may use when UCX can access
  // it (Wire::TakesDeviceMemory). With "nccl", pieces pass through host memory instead. Lanes
  // within one host use host memory only.
  std::shared_ptr<const TransferDevice> gpu = nullptr;
  NcclOptions nccl = {};
};

// Makes the wire between processes. UCX uses TCP on the interface with the address of `listen`,
// unless the environment sets UCX_TLS and UCX_NET_DEVICES, with which an operator selects RDMA
// devices. `receiver` outlives the wire; lanes must not. INVALID_ARGUMENT names the option;
// UNAVAILABLE when the address cannot be listened on; FAILED_PRECONDITION when NCCL or its GPU is
// missing.
absl::StatusOr<std::unique_ptr<Wire>> MakeUcxWire(const UcxWireOptions& options,
                                                  WireReceiver& receiver);

}  // namespace penstock
