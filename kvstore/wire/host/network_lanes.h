#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <variant>

#include "base/tls/tls_identity.h"
#include "kernels/transfer_device.h"
#include "kvstore/wire/loop.h"
#include "kvstore/wire/nccl/nccl_channel.h"
#include "kvstore/wire/net/endpoint.h"
#include "kvstore/wire/net/refusal.h"
#include "kvstore/wire/stream/stream_links.h"
#include "kvstore/wire/wire.h"
#include "kvstore/wire/wire_budget.h"

namespace penstock {

// The links of lanes between hosts: streams, whose connections arrive at the door, or links of a
// trusted network, which need no door. Never null.
using NetworkLinks = std::variant<std::unique_ptr<StreamLinks>, std::unique_ptr<WireLinks>>;

struct NetworkLanesArgs {
  WireLoop& loop;
  WireReceiver& receiver;
  WireBudget& budget;
  std::string instance;  // WireAddress::instance; a peer that expects another instance is refused
  SocketEndpoint listen;
  std::shared_ptr<TlsIdentity> identity;  // null: peers are not authenticated
  NetworkLinks links;
  NcclContext* nccl;  // null: NCCL is not used
  // GPU whose memory payloads may use if the links reach it; null: host memory only.
  std::shared_ptr<const TransferDevice> gpu;
  OnWireRefusal on_refused;
};

// The part of a wire between hosts: the door for peers, and lanes to them.
class NetworkLanes {
 public:
  struct Peer {
    std::string endpoint;
    std::string instance;
    bool nccl = false;  // use it with this peer
  };

  // UNAVAILABLE when the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<NetworkLanes>> Open(NetworkLanesArgs args);
  // Ends all incoming messages. The lanes must be destroyed before. Not on the loop's thread.
  virtual ~NetworkLanes() = default;
  virtual int port() const = 0;
  virtual bool TakesDeviceMemory() const = 0;
  // UNAVAILABLE when the peer at `endpoint` does not answer as `instance` before `deadline`.
  virtual absl::StatusOr<std::unique_ptr<WireLane>> Connect(
      const Peer& peer, std::chrono::steady_clock::time_point deadline) = 0;
};

}  // namespace penstock
