#include <atomic>
#include <future>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "kvstore/wire/net/packet_socket.h"
#include "kvstore/wire/net/socket.h"
#include "kvstore/wire/same_host/read_permission.h"
#include "kvstore/wire/same_host/same_host.h"

namespace penstock {
namespace {

class SameHostLane final : public WireLane {
 public:
  SameHostLane(WireLoop& loop, WireBudget& budget, pid_t peer)
      : loop_(loop), budget_(budget), peer_reads_(ReadPermission::OfThisProcess(), peer) {
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
                   std::function<void(absl::Status)> done) override;
  std::string transport() const override { return "shared memory"; }

 private:
  struct Transfer {
    size_t bytes = 0;
    std::function<void(absl::Status)> done;
  };

  void StartPut(const WirePacket& packet, Transfer transfer);
  void OnPacket(const WirePacket& packet);
  void Break(const absl::Status& status);
  void EndAll(const absl::Status& status);
  void End(Transfer transfer, const absl::Status& status);

  WireLoop& loop_;
  WireBudget& budget_;
  const ReadPermission::Grant peer_reads_;
  std::atomic<bool> broken_{false};
  // The fields below belong to the loop's thread.
  std::unique_ptr<PacketSocket> socket_;
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

absl::Status SameHostLane::Put(std::span<const std::byte> header,
                               std::span<const std::byte> payload,
                               std::function<void(absl::Status)> done) {
  RETURN_IF_ERROR(CheckPutSizes(header.size(), payload.size()));
  if (broken_) return Unavailable("the lane is broken; connect again");
  RETURN_IF_ERROR(budget_.Take(payload.size()));
  WirePacket packet{.kind = WirePacket::Kind::kAnnounce,
                    .address = reinterpret_cast<uint64_t>(payload.data()),
                    .size = payload.size()};
  packet.SetText({reinterpret_cast<const char*>(header.data()), header.size()});
  loop_.Post([this, packet, transfer = Transfer{payload.size(), std::move(done)}] {
    StartPut(packet, transfer);
  });
  return absl::OkStatus();
}

void SameHostLane::StartPut(const WirePacket& packet, Transfer transfer) {
  if (broken_) return End(std::move(transfer), Unavailable("the lane broke"));
  WirePacket numbered = packet;
  numbered.id = next_id_++;
  under_way_.emplace(numbered.id, std::move(transfer));
  socket_->Send(numbered);
}

void SameHostLane::OnPacket(const WirePacket& packet) {
  if (packet.kind == WirePacket::Kind::kWelcome && greeting_) {
    std::exchange(greeting_, nullptr)->set_value(packet.Status());
    return;
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
  budget_.Give(transfer.bytes);
  transfer.done(status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<WireLane>> OpenSameHostLane(const SameHostLaneArgs& args) {
  ASSIGN_OR_RETURN(const int fd, ConnectAbstract(args.name, args.deadline));
  const std::optional<ucred> peer = SocketPeer(fd);
  auto lane =
      std::make_unique<SameHostLane>(args.loop, args.budget, peer.has_value() ? peer->pid : 0);
  RETURN_IF_ERROR(lane->Open(fd, args.deadline));
  return lane;
}

}  // namespace penstock
