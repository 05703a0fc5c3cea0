#pragma once

#include <memory>
#include <string>

#include "base/tls/tls_identity.h"
#include "kernels/transfer_device.h"
#include "kvstore/wire/nccl/nccl_channel.h"
#include "kvstore/wire/net/refusal.h"
#include "kvstore/wire/wire.h"
#include "kvstore/wire/wire_budget.h"

namespace penstock {

// This room, kvstore/wire/host, is the wire between processes: it chooses a lane for each peer, on
// one host or between hosts, and moves messages over the lane's link. It knows nothing of slabs'
// contents, handoffs or caches, nor how a link sends.

// The options of MakeHostWire.
struct HostWireOptions {
  // The address for peers: "host", "host:port", "interface" or "interface:port". Without a port, or
  // with port 0, a free port is used. For "0.0.0.0" or "::" the first interface that is up and not
  // loopback is advertised.
  std::string listen = "127.0.0.1";
  // "auto": the same-host lane when the peer is on this machine and permits it, else TCP. "tcp":
  // TCP only. "shm": the same-host lane only; peers on other hosts are UNAVAILABLE. "nccl": as
  // auto, and NCCL for large messages to other hosts with the same version of NCCL. "ucx": as auto
  // with UCX in place of TCP.
  std::string lanes = "auto";
  // Members of the cluster authenticate each other, and lanes over TCP are sealed. Null: they are
  // plain.
  std::shared_ptr<TlsIdentity> identity = nullptr;
  // The operator has declared that only members reach the network of `listen`. "ucx" and "nccl"
  // need that, unless `listen` is a loopback address: every host that reaches their ports can write
  // to this process's memory.
  bool network_trusted = false;
  WireLimits limits;
  // The GPU through which NCCL moves bytes, and whose memory payloads between hosts may use with
  // NCCL, or when UCX can access it (Wire::TakesDeviceMemory). Other lanes between hosts use host
  // memory only.
  std::shared_ptr<const TransferDevice> gpu = nullptr;
  // The GPU whose memory payloads within this host may use when the peer's GPU reaches it; null:
  // they use host memory only.
  std::shared_ptr<const TransferDevice> same_host_gpu = nullptr;
  NcclOptions nccl = {};
  // Called on the wire's thread.
  OnWireRefusal on_refused = [](WireRefusal) {};
};

// Makes the wire between processes. `receiver` outlives the wire; lanes must not. INVALID_ARGUMENT
// names the option; UNAVAILABLE when the address cannot be listened on; FAILED_PRECONDITION when
// NCCL or its GPU is missing, or the network is not declared trusted and must be.
absl::StatusOr<std::unique_ptr<Wire>> MakeHostWire(const HostWireOptions& options,
                                                   WireReceiver& receiver);

}  // namespace penstock
