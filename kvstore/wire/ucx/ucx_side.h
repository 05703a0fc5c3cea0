#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "kernels/transfer_device.h"
#include "kvstore/wire/loop.h"
#include "kvstore/wire/nccl/nccl_channel.h"
#include "kvstore/wire/ucx/endpoint.h"
#include "kvstore/wire/wire.h"
#include "kvstore/wire/wire_budget.h"

namespace penstock {

// The arguments of OpenUcxSide. Only ucx.cc includes UCX's headers.
struct UcxSideArgs {
  WireLoop& loop;
  WireReceiver& receiver;
  WireBudget& budget;
  std::string instance;   // WireAddress::instance; a peer that expects another instance is refused
  SocketEndpoint listen;  // address of the handshake listener
  std::string device;     // network interface for UCX; empty: all
  NcclContext* nccl;      // null: NCCL is not used
  // GPU whose memory payloads may use; null: host memory only.
  std::shared_ptr<const TransferDevice> gpu;
};

// The part of a wire that UCX carries: the listener for peers, and lanes to them.
class UcxSide {
 public:
  // Ends all incoming messages. The lanes must be destroyed before. Not on the loop's thread.
  virtual ~UcxSide() = default;
  virtual int port() const = 0;
  virtual bool TakesDeviceMemory() const = 0;
  struct Peer {
    std::string endpoint;
    std::string instance;
    bool nccl = false;  // use it with this peer
  };
  // UNAVAILABLE when the peer at `endpoint` does not answer as `instance` before `deadline`.
  virtual absl::StatusOr<std::unique_ptr<WireLane>> Connect(
      const Peer& peer, std::chrono::steady_clock::time_point deadline) = 0;
};

absl::StatusOr<std::unique_ptr<UcxSide>> OpenUcxSide(const UcxSideArgs& args);

}  // namespace penstock
