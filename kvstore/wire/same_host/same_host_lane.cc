#include <atomic>
#include <future>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/log/log.h"
#include "kvstore/wire/net/packet_socket.h"
#include "kvstore/wire/net/socket.h"
#include "kvstore/wire/same_host/gpu_exports.h"
#include "kvstore/wire/same_host/read_permission.h"
#include "kvstore/wire/same_host/same_host.h"

namespace penstock {
namespace {

class SameHostLane final : public WireLane {
 public:
  SameHostLane(const SameHostLaneArgs& args, pid_t peer)
      : loop_(args.loop),
        budget_(args.budget),
        gpu_(args.gpu),
        exports_(args.gpu.device, [this](const WirePacket& packet) { socket_->Send(packet); }),
        peer_reads_(ReadPermission::OfThisProcess(), peer) {
    budget_.LaneOpened();
  }
  ~SameHostLane() override {
    PENSTOCK_CHECK(!loop_.OnThread(), "a lane is destroyed on its wire's own thread");
    loop_.Run([this] {
      socket_.reset();  // First, for the reason given in Break.
      EndAll(Cancelled("the lane was closed"));
    });
    budget_.LaneClosed();
  }

  // Takes ownership of `fd`. Waits until the peer has reported whether it can read this process's
  // memory.
  absl::Status Open(int fd, std::chrono::steady_clock::time_point deadline);

  absl::Status Put(std::span<const std::byte> header, std::span<const std::byte> payload,
                   std::function<void(absl::Status)> done) override {
    return Start(header, {.bytes = payload}, std::move(done));
  }
  bool TakesDeviceMemory() const override { return gpu_ready_; }
  absl::Status PutFromDevice(std::span<const std::byte> header, std::span<const std::byte> payload,
                             std::function<void(absl::Status)> done) override {
    return Start(header, {.bytes = payload, .memory = MemoryKind::kDevice}, std::move(done));
  }
  std::string transport() const override { return "shared memory"; }

 private:
  struct Transfer {
    WirePayload payload;
    std::function<void(absl::Status)> done;
  };

  absl::Status Start(std::span<const std::byte> header, const WirePayload& payload,
                     std::function<void(absl::Status)> done);
  absl::Status Place(const WirePayload& payload, WirePacket& packet);
  void StartProbe();
  void OnProbed(const absl::Status& status);
  void FailGpu(const absl::Status& status);
  void StartPut(const WirePacket& packet, Transfer transfer);
  void OnPacket(const WirePacket& packet);
  void Break(const absl::Status& status);
  void EndAll(const absl::Status& status);
  void End(Transfer transfer, const absl::Status& status);

  WireLoop& loop_;
  WireBudget& budget_;
  const SameHostGpu gpu_;
  GpuExports exports_;  // used with a GPU only
  const ReadPermission::Grant peer_reads_;
  std::atomic<bool> broken_{false};
  std::atomic<bool> gpu_ready_{false};
  // The fields below belong to the loop's thread.
  std::unique_ptr<PacketSocket> socket_;
  bool probing_ = false;
  bool gpu_failed_ = false;
  std::map<uint64_t, Transfer> under_way_;
  uint64_t next_id_ = 0;
  uint64_t probe_ = 0;
  std::shared_ptr<std::promise<absl::Status>> greeting_;  // until the peer has answered
};

absl::Status SameHostLane::Open(int fd, std::chrono::steady_clock::time_point deadline) {
  std::future<absl::Status> answer;
  absl::Status started;
  loop_.Run([&] {
    greeting_ = std::make_shared<std::promise<absl::Status>>();
    answer = greeting_->get_future();
    socket_ = std::make_unique<PacketSocket>(loop_, MakePlainSocket(fd));
    started = socket_->Start({.on_packet = [this](const WirePacket& packet) { OnPacket(packet); },
                              .on_closed = [this](const absl::Status& s) { Break(s); }});
    if (!started.ok()) return;
    probe_ = reinterpret_cast<uint64_t>(this) ^
             static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    socket_->Send(WirePacket{.kind = WirePacket::Kind::kHello,
                             .id = probe_,
                             .address = reinterpret_cast<uint64_t>(&probe_)});
  });
  RETURN_IF_ERROR(started);
  if (answer.wait_until(deadline) != std::future_status::ready) {
    return Unavailable("wire: the same-host lane was not answered in time");
  }
  return answer.get();
}

absl::Status SameHostLane::Start(std::span<const std::byte> header, const WirePayload& payload,
                                 std::function<void(absl::Status)> done) {
  const size_t size = payload.bytes.size();
  RETURN_IF_ERROR(CheckPutSizes(header.size(), size));
  if (broken_) return Unavailable("the lane is broken; connect again");
  RETURN_IF_ERROR(budget_.Take(size));
  WirePacket packet{.kind = WirePacket::Kind::kAnnounce, .size = size};
  packet.SetText({reinterpret_cast<const char*>(header.data()), header.size()});
  loop_.Post([this, packet, transfer = Transfer{payload, std::move(done)}] {
    StartPut(packet, transfer);
  });
  return absl::OkStatus();
}

void SameHostLane::StartPut(const WirePacket& packet, Transfer transfer) {
  if (broken_) return End(std::move(transfer), Unavailable("the lane broke"));
  WirePacket placed = packet;
  if (const absl::Status status = Place(transfer.payload, placed); !status.ok()) {
    return End(std::move(transfer), status);
  }
  placed.id = next_id_++;
  under_way_.emplace(placed.id, std::move(transfer));
  socket_->Send(placed);
}

// Sets the place where the peer reads the payload. A payload on the GPU that it cannot read there
// fails, and the lane stays open.
absl::Status SameHostLane::Place(const WirePayload& payload, WirePacket& packet) {
  if (payload.memory == MemoryKind::kHost) {
    packet.address = reinterpret_cast<uint64_t>(payload.bytes.data());
    return absl::OkStatus();
  }
  if (!gpu_ready_) return Unavailable("the lane sends from host memory only");
  const absl::Status placed = exports_.Place(payload.bytes, packet);
  if (placed.ok()) return absl::OkStatus();
  FailGpu(placed);
  return Unavailable("{}", Message(placed));
}

// Called when the peer has a GPU. Nothing waits for the answer.
void SameHostLane::StartProbe() {
  WirePacket packet{.kind = WirePacket::Kind::kProbe, .size = DeviceProbe::kBytes};
  const absl::Status placed = exports_.Place(gpu_.probe->source().bytes, packet);
  if (!placed.ok()) return FailGpu(placed);
  probing_ = true;
  socket_->Send(packet);
}

void SameHostLane::OnProbed(const absl::Status& status) {
  if (!status.ok()) return FailGpu(status);
  if (!std::exchange(probing_, false)) {
    return Break(Unavailable("the peer answered a probe that was not sent"));
  }
  gpu_ready_ = !gpu_failed_;
}

void SameHostLane::FailGpu(const absl::Status& status) {
  gpu_ready_ = false;
  if (std::exchange(gpu_failed_, true)) return;
  LogWarning("gpu_memory_not_used", "a lane over {} uses host memory at both ends: {}", transport(),
             Message(status));
}

void SameHostLane::OnPacket(const WirePacket& packet) {
  if (packet.kind == WirePacket::Kind::kWelcome && greeting_) {
    const bool gpus =
        gpu_.device != nullptr && packet.id == static_cast<uint64_t>(WirePacket::Memory::kDevice);
    if (packet.Status().ok() && gpus) StartProbe();
    std::exchange(greeting_, nullptr)->set_value(packet.Status());
    return;
  }
  if (packet.kind == WirePacket::Kind::kProbed && gpu_.device != nullptr) {
    return OnProbed(packet.Status());
  }
  const auto found = under_way_.find(packet.id);
  if (packet.kind != WirePacket::Kind::kEnded || found == under_way_.end()) {
    return Break(Unavailable("the peer answered a message that was not sent"));
  }
  Transfer transfer = std::move(found->second);
  under_way_.erase(found);
  End(std::move(transfer), packet.Status());
}

void SameHostLane::Break(const absl::Status& status) {
  broken_ = true;
  // The socket closes first: from then on the receiver rejects whatever it reads from the buffers.
  socket_->HangUp();
  if (greeting_) std::exchange(greeting_, nullptr)->set_value(status);
  EndAll(Unavailable("the lane broke: {}", Message(status)));
}

void SameHostLane::EndAll(const absl::Status& status) {
  broken_ = true;
  for (auto& [id, transfer] : std::exchange(under_way_, {})) End(std::move(transfer), status);
}

void SameHostLane::End(Transfer transfer, const absl::Status& status) {
  budget_.Give(transfer.payload.bytes.size());
  transfer.done(status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<WireLane>> OpenSameHostLane(const SameHostLaneArgs& args) {
  ASSIGN_OR_RETURN(const int fd, ConnectAbstract(args.name, args.deadline));
  const std::optional<ucred> peer = SocketPeer(fd);
  auto lane = std::make_unique<SameHostLane>(args, peer.has_value() ? peer->pid : 0);
  RETURN_IF_ERROR(lane->Open(fd, args.deadline));
  return lane;
}

}  // namespace penstock
