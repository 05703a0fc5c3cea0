#include <atomic>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/log/log.h"
#include "kvstore/wire/ucx/address.h"
#include "kvstore/wire/ucx/endpoint.h"
#include "kvstore/wire/ucx/same_host.h"
#include "kvstore/wire/ucx/ucx.h"
#include "kvstore/wire/ucx/ucx_side.h"

namespace penstock {
namespace {

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

  absl::Status ListenSameHost(WireReceiver& receiver);
  absl::Status OpenNccl(const UcxWireOptions& options);
  absl::Status ListenUcx(const UcxWireOptions& options, WireReceiver& receiver);

  std::string address() const override { return FormatWireAddress(address_); }
  absl::StatusOr<std::unique_ptr<WireLane>> Connect(const std::string& address,
                                                    int64_t timeout_ms) override;
  bool TakesDeviceMemory() const override { return ucx_ != nullptr && ucx_->TakesDeviceMemory(); }

 private:
  bool TryNccl(const WireAddress& peer) const;

  std::unique_ptr<WireLoop> loop_;
  WireBudget budget_;
  WireAddress address_;
  std::unique_ptr<SameHostReceiver> same_host_;  // null: this wire has no such lanes
  std::unique_ptr<NcclContext> nccl_;            // null: NCCL is off
  std::unique_ptr<UcxSide> ucx_;                 // null: this wire has no UCX lanes
};

absl::Status HostWire::ListenSameHost(WireReceiver& receiver) {
  absl::Status status;
  loop_->Run([&] {
    auto listening = ListenOnSameHost(*loop_, receiver);
    status = listening.status();
    if (listening.ok()) same_host_ = *std::move(listening);
  });
  RETURN_IF_ERROR(status);
  address_.same_host = same_host_->name();
  return absl::OkStatus();
}

absl::Status HostWire::OpenNccl(const UcxWireOptions& options) {
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

absl::Status HostWire::ListenUcx(const UcxWireOptions& options, WireReceiver& receiver) {
  auto place = FindListenPlace(options.listen);
  if (!place.ok()) return Annotate(place.status(), "wire.listen");
  ASSIGN_OR_RETURN(ucx_, OpenUcxSide({.loop = *loop_,
                                      .receiver = receiver,
                                      .budget = budget_,
                                      .instance = address_.instance,
                                      .listen = place->bind,
                                      .device = place->device,
                                      .nccl = nccl_.get(),
                                      .gpu = nccl_ == nullptr ? options.gpu : nullptr}));
  place->advertise.set_port(ucx_->port());
  address_.endpoint = place->advertise.Text();
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
    auto lane = OpenSameHostLane(
        {.loop = *loop_, .budget = budget_, .name = peer.same_host, .deadline = deadline});
    if (lane.ok()) return lane;
    refusal = lane.status();
  }
  if (ucx_ == nullptr || peer.endpoint.empty()) {
    return Annotate(refusal, "wire: no lane in common with the peer (wire.lanes)");
  }
  return ucx_->Connect(
      {.endpoint = peer.endpoint, .instance = peer.instance, .nccl = TryNccl(peer)}, deadline);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Wire>> MakeUcxWire(const UcxWireOptions& options,
                                                  WireReceiver& receiver) {
  const bool tcp = options.lanes == "tcp";
  const bool shm = options.lanes == "shm";
  const bool nccl = options.lanes == "nccl";
  if (!tcp && !shm && !nccl && options.lanes != "auto") {
    return InvalidArgument("wire.lanes is \"{}\", must be auto, tcp, shm or nccl", options.lanes);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<WireLoop> loop, WireLoop::Start());
  auto wire = std::make_unique<HostWire>(std::move(loop), options.limits);
  if (nccl) RETURN_IF_ERROR(wire->OpenNccl(options));
  if (!tcp) RETURN_IF_ERROR(wire->ListenSameHost(receiver));
  if (!shm) RETURN_IF_ERROR(wire->ListenUcx(options, receiver));
  return wire;
}

}  // namespace penstock
