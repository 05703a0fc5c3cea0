#include "kvstore/wire/ucx/ucx_side.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <list>
#include <utility>

#include "base/check.h"
#include "kvstore/wire/ucx/socket.h"
#include "kvstore/wire/ucx/ucx_connection.h"

namespace penstock {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

constexpr size_t kConnectionsMax = 1024;

class UcxLane final : public WireLane {
 public:
  explicit UcxLane(const UcxConnection::Shared& shared) : shared_(shared) {
    shared_.budget.LaneOpened();
  }
  ~UcxLane() override {
    PENSTOCK_CHECK(!shared_.loop.OnThread(), "a lane is destroyed on its wire's own thread");
    shared_.loop.Run([this] { connection_.reset(); });
    shared_.budget.LaneClosed();
  }

  // Takes ownership of `handshake_fd`.
  absl::Status Open(int handshake_fd, const UcxSide::Peer& peer, SteadyTime deadline);
  absl::Status Put(std::span<const std::byte> header, std::span<const std::byte> payload,
                   std::function<void(absl::Status)> done) override {
    return Start(header, {.bytes = payload}, std::move(done));
  }
  absl::Status PutFromDevice(std::span<const std::byte> header, std::span<const std::byte> payload,
                             std::function<void(absl::Status)> done) override {
    return Start(header, {.bytes = payload, .memory = MemoryKind::kDevice}, std::move(done));
  }
  bool TakesDeviceMemory() const override { return connection_->TakesDeviceMemory(); }
  std::string transport() const override { return connection_->nccl_ready() ? "nccl" : transport_; }

 private:
  absl::Status Start(std::span<const std::byte> header, const WirePayload& payload,
                     std::function<void(absl::Status)> done);

  const UcxConnection::Shared shared_;
  std::unique_ptr<UcxConnection> connection_;
  std::string transport_;
};

absl::Status UcxLane::Open(int handshake_fd, const UcxSide::Peer& peer, SteadyTime deadline) {
  auto greeted = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> answer = greeted->get_future();
  shared_.loop.Run([&] {
    connection_ = std::make_unique<UcxConnection>(shared_, handshake_fd);
    connection_->Greet({.instance = peer.instance,
                        .nccl = peer.nccl,
                        .on_greeted = [this, greeted](const absl::Status& status) {
                          if (status.ok()) transport_ = connection_->transport();
                          greeted->set_value(status);
                        }});
  });
  if (answer.wait_until(deadline) != std::future_status::ready) {
    return DeadlineExceeded("the peer did not answer in time");
  }
  return answer.get();
}

absl::Status UcxLane::Start(std::span<const std::byte> header, const WirePayload& payload,
                            std::function<void(absl::Status)> done) {
  const size_t size = payload.bytes.size();
  RETURN_IF_ERROR(CheckPutSizes(header.size(), size));
  if (connection_->closing()) return Unavailable("the lane is broken; connect again");
  RETURN_IF_ERROR(shared_.budget.Take(size));
  WirePacket packet{.kind = WirePacket::Kind::kAnnounce, .size = size};
  packet.SetText({reinterpret_cast<const char*>(header.data()), header.size()});
  shared_.loop.Post([this, packet, payload, done = std::move(done)] {
    if (!connection_->closing()) return connection_->Put(packet, {payload, done});
    shared_.budget.Give(payload.bytes.size());
    done(Unavailable("the lane broke"));
  });
  return absl::OkStatus();
}

class Side final : public UcxSide, public WireLoop::Source {
 public:
  explicit Side(const UcxSideArgs& args)
      : loop_(args.loop),
        receiver_(args.receiver),
        budget_(args.budget),
        instance_(args.instance),
        nccl_(args.nccl),
        listen_(args.listen) {}
  ~Side() override;

  absl::Status Open(const UcxSideArgs& args);
  int port() const override { return listen_.port(); }
  bool TakesDeviceMemory() const override { return context_->TakesDeviceMemory(); }
  absl::StatusOr<std::unique_ptr<WireLane>> Connect(const Peer& peer, SteadyTime deadline) override;

  // Removes closed connections outside of their own callbacks.
  bool Progress() override {
    return connections_.remove_if([](const auto& connection) { return connection->closing(); }) > 0;
  }
  bool Arm() override {
    return std::none_of(connections_.begin(), connections_.end(),
                        [](const auto& connection) { return connection->closing(); });
  }

 private:
  absl::Status Listen();
  void Accept();
  UcxConnection::Shared Shared() {
    return {.loop = loop_,
            .context = *context_,
            .receiver = receiver_,
            .budget = budget_,
            .instance = instance_,
            .nccl = nccl_,
            .probe = *probe_};
  }

  WireLoop& loop_;
  WireReceiver& receiver_;
  WireBudget& budget_;
  const std::string instance_;
  NcclContext* const nccl_;
  SocketEndpoint listen_;
  std::unique_ptr<UcxContext> context_;
  std::unique_ptr<DeviceProbe> probe_;
  // The fields below belong to the loop's thread.
  int fd_ = -1;
  std::list<std::unique_ptr<UcxConnection>> connections_;
};

Side::~Side() {
  loop_.Run([this] {
    loop_.RemoveSource(this);
    if (fd_ >= 0) loop_.Unwatch(fd_);
    if (fd_ >= 0) close(fd_);
    connections_.clear();
  });
}

absl::Status Side::Open(const UcxSideArgs& args) {
  ASSIGN_OR_RETURN(context_, UcxContext::Open(args.device, args.gpu));
  const bool on_gpu = context_->TakesDeviceMemory();
  ASSIGN_OR_RETURN(probe_, DeviceProbe::Make(on_gpu ? args.gpu : nullptr));
  absl::Status status;
  loop_.Run([&] {
    if (on_gpu) args.gpu->Select();  // for UCX's calls on this thread
    status = Listen();
  });
  return status;
}

absl::Status Side::Listen() {
  loop_.AddSource(this);
  ASSIGN_OR_RETURN(fd_, ListenTcp(listen_));
  return loop_.Watch(fd_, EPOLLIN, [this](uint32_t) { Accept(); });
}

void Side::Accept() {
  const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  if (connections_.size() >= kConnectionsMax) {
    close(fd);
    return;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  connections_.push_back(std::make_unique<UcxConnection>(Shared(), fd));
  connections_.back()->Admit();
}

absl::StatusOr<std::unique_ptr<WireLane>> Side::Connect(const Peer& peer, SteadyTime deadline) {
  ASSIGN_OR_RETURN(const SocketEndpoint endpoint, ParseEndpoint(peer.endpoint));
  ASSIGN_OR_RETURN(const int fd, ConnectTcp(endpoint, deadline));
  auto lane = std::make_unique<UcxLane>(Shared());
  const absl::Status status = lane->Open(fd, peer, deadline);
  if (status.ok()) return lane;
  return Unavailable("wire: no lane to {}: {}", peer.endpoint, Message(status));
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxSide>> OpenUcxSide(const UcxSideArgs& args) {
  auto side = std::make_unique<Side>(args);
  RETURN_IF_ERROR(side->Open(args));
  return side;
}

}  // namespace penstock
