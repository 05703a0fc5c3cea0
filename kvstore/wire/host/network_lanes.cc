#include "kvstore/wire/host/network_lanes.h"

#include <unistd.h>

#include <algorithm>
#include <future>
#include <list>
#include <utility>

#include "base/check.h"
#include "base/tls/tls_socket.h"
#include "kvstore/wire/host/lane_connection.h"
#include "kvstore/wire/net/socket.h"
#include "kvstore/wire/net/ticker.h"
#include "kvstore/wire/stream/door.h"

namespace penstock {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

// Lanes of peers to this process: in all, and from one network, of which NAT may show many hosts.
constexpr size_t kLanesMax = 1024;
constexpr size_t kLanesOfNetworkMax = 256;
// Time in which a peer that has said hello must have opened its link.
constexpr auto kLinkTime = std::chrono::seconds(5);
constexpr auto kTick = std::chrono::milliseconds(250);
// ALPN name, so that no member's gRPC connection is taken for a lane.
constexpr char kProtocol[] = "penstock-wire/2";

WireLinks& AnyOf(const NetworkLinks& links) {
  return std::visit([](const auto& some) -> WireLinks& { return *some; }, links);
}

class NetworkLane final : public WireLane {
 public:
  explicit NetworkLane(const LaneConnection::Shared& shared) : shared_(shared) {
    shared_.budget.LaneOpened();
  }
  ~NetworkLane() override {
    PENSTOCK_CHECK(!shared_.loop.OnThread(), "a lane is destroyed on its wire's own thread");
    shared_.loop.Run([this] { connection_.reset(); });
    shared_.budget.LaneClosed();
  }

  absl::Status Open(std::unique_ptr<Socket> handshake, LaneConnection::Hello hello,
                    SteadyTime deadline);
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

  const LaneConnection::Shared shared_;
  std::unique_ptr<LaneConnection> connection_;
  std::string transport_;
};

absl::Status NetworkLane::Open(std::unique_ptr<Socket> handshake, LaneConnection::Hello hello,
                               SteadyTime deadline) {
  auto greeted = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> answer = greeted->get_future();
  hello.on_greeted = [this, greeted](const absl::Status& status) {
    if (status.ok()) transport_ = connection_->transport();
    greeted->set_value(status);
  };
  shared_.loop.Run([&] {
    connection_ = std::make_unique<LaneConnection>(shared_, std::move(handshake));
    connection_->Greet(std::move(hello));
  });
  if (answer.wait_until(deadline) != std::future_status::ready) {
    return DeadlineExceeded("the peer did not answer in time");
  }
  return answer.get();
}

absl::Status NetworkLane::Start(std::span<const std::byte> header, const WirePayload& payload,
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

class Lanes final : public NetworkLanes, public WireLoop::Source {
 public:
  explicit Lanes(NetworkLanesArgs args) : args_(std::move(args)), links_(AnyOf(args_.links)) {}
  ~Lanes() override;

  absl::Status Start();
  int port() const override { return args_.listen.port(); }
  bool TakesDeviceMemory() const override { return links_.TakesDeviceMemory(); }
  absl::StatusOr<std::unique_ptr<WireLane>> Connect(const Peer& peer, SteadyTime deadline) override;

  // Removes closed connections outside of their own callbacks.
  bool Progress() override {
    return incoming_.remove_if([](const Incoming& one) { return one.connection->closing(); }) > 0;
  }
  bool Arm() override {
    return std::none_of(incoming_.begin(), incoming_.end(),
                        [](const Incoming& one) { return one.connection->closing(); });
  }

 private:
  // A peer's lane to this process.
  struct Incoming {
    std::unique_ptr<LaneConnection> connection;
    std::string network;
    SteadyTime link_until;
  };

  absl::Status Listen();
  void Admit(WireDoor::Caller caller);
  bool HasRoom(const std::string& network) const;
  void Join(int fd, const StreamHello& hello);
  void CloseUnlinked();
  LaneConnection::Shared Shared() {
    return {.loop = args_.loop,
            .links = links_,
            .receiver = args_.receiver,
            .budget = args_.budget,
            .instance = args_.instance,
            .nccl = args_.nccl,
            .probe = *probe_,
            .on_refused = args_.on_refused};
  }

  NetworkLanesArgs args_;
  WireLinks& links_;
  std::unique_ptr<TlsSockets> tls_;  // null: peers are not authenticated
  std::unique_ptr<DeviceProbe> probe_;
  // The fields below belong to the loop's thread.
  std::unique_ptr<WireDoor> door_;
  std::unique_ptr<WireTicker> ticker_;
  std::list<Incoming> incoming_;
};

Lanes::~Lanes() {
  args_.loop.Run([this] {
    args_.loop.RemoveSource(this);
    door_.reset();
    ticker_.reset();
    incoming_.clear();
  });
}

absl::Status Lanes::Start() {
  if (args_.identity != nullptr) {
    ASSIGN_OR_RETURN(tls_, TlsSockets::Create(args_.identity,
                                              {.protocols = {kProtocol}, .between_members = true}));
  }
  const bool on_gpu = links_.TakesDeviceMemory();
  ASSIGN_OR_RETURN(probe_, DeviceProbe::Make(on_gpu ? args_.gpu : nullptr));
  absl::Status status;
  args_.loop.Run([&] {
    if (on_gpu) args_.gpu->Select();  // for the links' calls on this thread
    status = Listen();
  });
  return status;
}

absl::Status Lanes::Listen() {
  args_.loop.AddSource(this);
  ASSIGN_OR_RETURN(ticker_, WireTicker::Create(args_.loop, kTick, [this] { CloseUnlinked(); }));
  ASSIGN_OR_RETURN(const int fd, ListenTcp(args_.listen));
  ASSIGN_OR_RETURN(
      door_,
      WireDoor::Open(
          {.loop = args_.loop,
           .fd = fd,
           .tls = tls_.get(),
           .events = {.on_hello = [this](WireDoor::Caller caller) { Admit(std::move(caller)); },
                      .on_stream = [this](int stream_fd,
                                          const StreamHello& hello) { Join(stream_fd, hello); },
                      .on_refused = args_.on_refused}}));
  return absl::OkStatus();
}

void Lanes::Admit(WireDoor::Caller caller) {
  if (!HasRoom(caller.network)) return args_.on_refused(WireRefusal::kLimit);
  Incoming& incoming = incoming_.emplace_back();
  incoming.connection = std::make_unique<LaneConnection>(Shared(), std::move(caller.socket));
  incoming.network = std::move(caller.network);
  incoming.link_until = std::chrono::steady_clock::now() + kLinkTime;
  ticker_->Switch(true);
  incoming.connection->Admit(caller.hello, caller.secret);
}

bool Lanes::HasRoom(const std::string& network) const {
  const auto of_network = static_cast<size_t>(
      std::count_if(incoming_.begin(), incoming_.end(),
                    [&](const Incoming& one) { return one.network == network; }));
  return incoming_.size() < kLanesMax && of_network < kLanesOfNetworkMax;
}

void Lanes::Join(int fd, const StreamHello& hello) {
  if (const auto* streams = std::get_if<std::unique_ptr<StreamLinks>>(&args_.links)) {
    if (!(*streams)->Join(fd, hello)) args_.on_refused(WireRefusal::kProtocol);
  } else {
    close(fd);
    args_.on_refused(WireRefusal::kProtocol);
  }
}

void Lanes::CloseUnlinked() {
  const auto now = std::chrono::steady_clock::now();
  bool waiting = false;
  for (Incoming& one : incoming_) {
    if (one.connection->established() || one.connection->closing()) continue;
    waiting = true;
    if (one.link_until > now) continue;
    args_.on_refused(WireRefusal::kGreeting);
    one.connection->Close(Unavailable("the peer did not open its link in time"));
  }
  ticker_->Switch(waiting);
}

absl::StatusOr<std::unique_ptr<WireLane>> Lanes::Connect(const Peer& peer, SteadyTime deadline) {
  ASSIGN_OR_RETURN(const SocketEndpoint endpoint, ParseEndpoint(peer.endpoint));
  ASSIGN_OR_RETURN(const int fd, ConnectTcp(endpoint, deadline));
  std::unique_ptr<Socket> socket = tls_ == nullptr ? MakePlainSocket(fd) : tls_->Connect(fd);
  if (socket == nullptr) return ResourceExhausted("wire: no memory for a TLS connection");
  auto lane = std::make_unique<NetworkLane>(Shared());
  const absl::Status status = lane->Open(
      std::move(socket),
      {.instance = peer.instance, .peer = endpoint, .nccl = peer.nccl, .on_greeted = {}}, deadline);
  if (status.ok()) return lane;
  return Unavailable("wire: no lane to {}: {}", peer.endpoint, Message(status));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NetworkLanes>> NetworkLanes::Open(NetworkLanesArgs args) {
  auto lanes = std::make_unique<Lanes>(std::move(args));
  RETURN_IF_ERROR(lanes->Start());
  return lanes;
}

}  // namespace penstock
