#include "kvstore/wire/host/host_wire.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/log/log.h"
#include "kvstore/wire/host/network_lanes.h"
#include "kvstore/wire/net/address.h"
#include "kvstore/wire/net/endpoint.h"
#include "kvstore/wire/same_host/same_host.h"
#include "kvstore/wire/stream/stream_links.h"
#include "kvstore/wire/ucx/ucx_links.h"

namespace penstock {
namespace {

// The networks of UCX and NCCL must be trusted: neither authenticates the callers of its ports.
absl::Status CheckTrust(const HostWireOptions& options, const SocketEndpoint& bind) {
  const std::string transports = ChosenUcxTransports();
  if (options.lanes != "ucx" && options.lanes != "nccl") {
    if (!transports.empty()) {
      LogWarning("ucx_not_used", "UCX_TLS={} has no effect: wire is {}, and only ucx uses UCX",
                 transports, options.lanes);
    }
    return absl::OkStatus();
  }
  if (!bind.loopback() && !options.network_trusted) {
    return FailedPrecondition(
        "wire={} on {}: everyone who can reach this worker's network could read and write its "
        "memory; set wire_network_trusted if only the cluster reaches it, or wire=auto",
        options.lanes, bind.Text());
  }
  if (options.lanes == "ucx" && transports.empty()) {
    return FailedPrecondition(
        "wire=ucx needs the environment variable UCX_TLS: rc (or rc,cuda_copy) for RDMA, or tcp, "
        "whose ports let everyone who reaches them write to all memory of this process");
  }
  LogWarning(
      "wire_network_trusted",
      "wire={} on {}{}: every host that reaches this network can read and write this process's "
      "memory",
      options.lanes, bind.Text(), transports.empty() ? "" : ", UCX_TLS=" + transports);
  return absl::OkStatus();
}

// Listens for both kinds of lanes and chooses one for each peer. Everything shares one loop thread.
class HostWire final : public Wire {
 public:
  HostWire(std::unique_ptr<WireLoop> loop, const WireLimits& limits)
      : loop_(std::move(loop)), budget_(limits) {
    address_.instance = RandomName();
    address_.host = BootId();
  }
  ~HostWire() override {
    PENSTOCK_CHECK_EQ(budget_.lanes(), 0);
    loop_->Run([this] { same_host_.reset(); });
  }

  absl::Status ListenSameHost(const HostWireOptions& options, WireReceiver& receiver);
  absl::Status OpenNccl(const HostWireOptions& options);
  absl::Status ListenOnNetwork(const HostWireOptions& options, WireReceiver& receiver);

  std::string address() const override { return FormatWireAddress(address_); }
  absl::StatusOr<std::unique_ptr<WireLane>> Connect(const std::string& address,
                                                    int64_t timeout_ms) override;
  bool TakesDeviceMemory() const override {
    return same_host_gpu_.device != nullptr || nccl_ != nullptr ||
           (network_ != nullptr && network_->TakesDeviceMemory());
  }

 private:
  void OpenSameHostGpu(const std::shared_ptr<const TransferDevice>& gpu);
  absl::Status CheckPeer(const WireAddress& peer) const;
  bool TryNccl(const WireAddress& peer) const;

  std::unique_ptr<WireLoop> loop_;
  WireBudget budget_;
  WireAddress address_;
  SameHostGpu same_host_gpu_;
  std::unique_ptr<DeviceProbe> same_host_probe_;  // with a GPU for such lanes
  std::unique_ptr<SameHostReceiver> same_host_;   // null: this wire has no such lanes
  std::unique_ptr<NcclContext> nccl_;             // null: NCCL is off
  std::unique_ptr<NetworkLanes> network_;         // null: this wire has no lanes between hosts
};

// A GPU that has no room for the probe is not used.
void HostWire::OpenSameHostGpu(const std::shared_ptr<const TransferDevice>& gpu) {
  if (gpu == nullptr) return;
  auto probe = DeviceProbe::Make(gpu);
  if (!probe.ok()) {
    LogWarning("gpu_memory_not_used", "lanes within this host use host memory: {}",
               Message(probe.status()));
    return;
  }
  same_host_probe_ = *std::move(probe);
  same_host_gpu_ = {.device = gpu, .probe = same_host_probe_.get()};
}

absl::Status HostWire::ListenSameHost(const HostWireOptions& options, WireReceiver& receiver) {
  OpenSameHostGpu(options.same_host_gpu);
  absl::Status status;
  loop_->Run([&] {
    auto listening = ListenOnSameHost(*loop_, receiver, same_host_gpu_);
    status = listening.status();
    if (listening.ok()) same_host_ = *std::move(listening);
  });
  RETURN_IF_ERROR(status);
  address_.same_host = same_host_->name();
  return absl::OkStatus();
}

absl::Status HostWire::OpenNccl(const HostWireOptions& options) {
  if (options.gpu == nullptr) {
    return FailedPrecondition(
        "wire is nccl, which needs a GPU, and this worker has none; set --device=cuda:0 or "
        "--wire=auto");
  }
  ASSIGN_OR_RETURN(nccl_, NcclContext::Open(options.nccl, options.gpu, *loop_));
  address_.nccl = nccl_->version();
  return absl::OkStatus();
}

// Within one host shared memory is faster than any network, and NCCL refuses two ranks on one GPU.
bool HostWire::TryNccl(const WireAddress& peer) const {
  if (nccl_ == nullptr || peer.host == address_.host) return false;
  if (peer.nccl == address_.nccl) return true;
  LogWarning("nccl_lane_failed",
             "a lane to {} does not use NCCL: the peer has version {}, this process {}",
             peer.endpoint, peer.nccl.empty() ? "none" : peer.nccl, address_.nccl);
  return false;
}

absl::Status HostWire::ListenOnNetwork(const HostWireOptions& options, WireReceiver& receiver) {
  auto place = FindListenPlace(options.listen);
  if (!place.ok()) return Annotate(place.status(), "wire.listen");
  RETURN_IF_ERROR(CheckTrust(options, place->bind));
  const bool ucx = options.lanes == "ucx";
  NetworkLinks links = MakeStreamLinks();
  if (ucx) {
    ASSIGN_OR_RETURN(links, OpenUcxLinks(place->device, options.gpu));
  }
  ASSIGN_OR_RETURN(network_, NetworkLanes::Open({.loop = *loop_,
                                                 .receiver = receiver,
                                                 .budget = budget_,
                                                 .instance = address_.instance,
                                                 .listen = place->bind,
                                                 .identity = options.identity,
                                                 .links = std::move(links),
                                                 .nccl = nccl_.get(),
                                                 .gpu = options.gpu,
                                                 .on_refused = options.on_refused}));
  place->advertise.set_port(network_->port());
  address_.endpoint = place->advertise.Text();
  address_.link = ucx ? "ucx" : "stream";
  address_.tls = options.identity != nullptr;
  return absl::OkStatus();
}

// Two wires never agree on less than either wants.
absl::Status HostWire::CheckPeer(const WireAddress& peer) const {
  if (peer.link != address_.link) {
    return Unavailable("wire: the peer's lanes between hosts are {}, this process's {} (wire)",
                       peer.link, address_.link);
  }
  if (peer.tls != address_.tls) {
    return Unavailable(
        "wire: {} has the cluster's certificates, {} has not; set cluster_ca, cluster_cert and "
        "cluster_key on every worker",
        peer.tls ? "the peer" : "this process", peer.tls ? "this process" : "the peer");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WireLane>> HostWire::Connect(const std::string& address,
                                                            int64_t timeout_ms) {
  ASSIGN_OR_RETURN(const WireAddress peer, ParseWireAddress(address));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  absl::Status refusal = Unavailable("wire: the peer is not on this host");
  const bool same_host = same_host_ != nullptr && !peer.same_host.empty() && !peer.host.empty() &&
                         peer.host == address_.host;
  if (same_host) {
    auto lane = OpenSameHostLane({.loop = *loop_,
                                  .budget = budget_,
                                  .name = peer.same_host,
                                  .deadline = deadline,
                                  .gpu = same_host_gpu_});
    if (lane.ok()) return lane;
    refusal = lane.status();
  }
  if (network_ == nullptr || peer.endpoint.empty()) {
    return Annotate(refusal, "wire: no lane in common with the peer (wire.lanes)");
  }
  RETURN_IF_ERROR(CheckPeer(peer));
  return network_->Connect(
      {.endpoint = peer.endpoint, .instance = peer.instance, .nccl = TryNccl(peer)}, deadline);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Wire>> MakeHostWire(const HostWireOptions& options,
                                                   WireReceiver& receiver) {
  static constexpr std::array<std::string_view, 5> kLanes = {"auto", "tcp", "shm", "ucx", "nccl"};
  if (std::find(kLanes.begin(), kLanes.end(), options.lanes) == kLanes.end()) {
    return InvalidArgument("wire.lanes is \"{}\", must be {}", options.lanes,
                           fmt::join(kLanes, ", "));
  }
  DisableUcxSideEffects();
  ASSIGN_OR_RETURN(std::unique_ptr<WireLoop> loop, WireLoop::Start());
  auto wire = std::make_unique<HostWire>(std::move(loop), options.limits);
  if (options.lanes == "nccl") RETURN_IF_ERROR(wire->OpenNccl(options));
  if (options.lanes != "tcp") RETURN_IF_ERROR(wire->ListenSameHost(options, receiver));
  if (options.lanes != "shm") RETURN_IF_ERROR(wire->ListenOnNetwork(options, receiver));
  return wire;
}

}  // namespace penstock
