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

// The lanes of a wire that UCX carries. UCX itself is named in wire_ucx.cc only.
struct UcxSideArgs {
  WireLoop& loop;
  WireReceiver& receiver;
  WireBudget& budget;
  std::string instance;   // WireAddress::instance; who looks for another is turned away
  SocketEndpoint listen;  // where peers come to the door
  std::string device;     // network interface that UCX uses; empty: all
  NcclContext* nccl;      // null: none here
  std::shared_ptr<const TransferDevice> gpu;  // whose memory payloads may be in; null: none
};

class UcxSide {
 public:
  // Ends what is under way on the receiving side; its lanes are gone. Not on the loop's thread.
  virtual ~UcxSide() = default;
  virtual int port() const = 0;
  virtual bool TakesDeviceMemory() const = 0;
  struct Peer {
    std::string endpoint;
    std::string instance;
    bool nccl = false;  // try it with this peer
  };
  // UNAVAILABLE when the peer at `endpoint` does not answer as `instance` before `deadline`.
  virtual absl::StatusOr<std::unique_ptr<WireLane>> Connect(
      const Peer& peer, std::chrono::steady_clock::time_point deadline) = 0;
};

absl::StatusOr<std::unique_ptr<UcxSide>> OpenUcxSide(const UcxSideArgs& args);

}  // namespace penstock
