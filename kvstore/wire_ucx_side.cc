#include "kvstore/wire_ucx_side.h"

#include <algorithm>
#include <future>
#include <map>
#include <thread>
#include <utility>

#include "base/check.h"
#include "kvstore/wire_ucx_connection.h"

namespace penstock {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

// A connect now and then fails although the peer is well; a few tries tell that from a dead one.
constexpr int kConnectTries = 3;
constexpr auto kConnectPause = std::chrono::milliseconds(20);

class Side;

class UcxLane final : public WireLane {
 public:
  UcxLane(Side& side, WireLoop& loop, WireBudget& budget)
      : side_(side), loop_(loop), budget_(budget) {
    budget_.LaneOpened();
  }
  ~UcxLane() override;

  absl::Status Open(const SocketEndpoint& peer, const std::string& instance, SteadyTime deadline);
  absl::Status Put(std::span<const std::byte> header, std::span<const std::byte> payload,
                   std::function<void(absl::Status)> done) override;
  std::string transport() const override { return transport_; }

 private:
  Side& side_;
  WireLoop& loop_;
  WireBudget& budget_;
  UcxConnection* connection_ = nullptr;  // the side's; lives as long as this lane
  UcxWorker::Endpoint endpoint_ = 0;
  std::string transport_ = "ucx";
};

class Side final : public UcxSide {
 public:
  explicit Side(const UcxSideArgs& args)
      : loop_(args.loop),
        receiver_(args.receiver),
        budget_(args.budget),
        instance_(args.instance) {}
  ~Side() override;

  absl::Status Open(const UcxSideArgs& args);
  int port() const override { return worker_->port(); }
  absl::StatusOr<std::unique_ptr<WireLane>> Connect(const std::string& endpoint,
                                                    const std::string& instance,
                                                    SteadyTime deadline) override;

  // The rest is for the loop's thread.
  UcxConnection& Add(UcxWorker::Endpoint endpoint);
  void Remove(UcxWorker::Endpoint endpoint);
  UcxWorker& worker() { return *worker_; }

 private:
  void OnAccepted(UcxWorker::Endpoint endpoint);
  UcxConnection* Find(UcxWorker::Endpoint endpoint);

  WireLoop& loop_;
  WireReceiver& receiver_;
  WireBudget& budget_;
  const std::string instance_;
  std::unique_ptr<UcxWorker> worker_;
  std::map<UcxWorker::Endpoint, std::unique_ptr<UcxConnection>> connections_;
  std::function<void()> when_empty_;
};

absl::Status Side::Open(const UcxSideArgs& args) {
  ASSIGN_OR_RETURN(const SocketEndpoint listen, ParseEndpoint(args.listen));
  UcxWorker::Events events{
      .on_accepted = [this](UcxWorker::Endpoint endpoint) { OnAccepted(endpoint); },
      .on_failed =
          [this](UcxWorker::Endpoint endpoint, const absl::Status& status) {
            UcxConnection* connection = Find(endpoint);
            if (connection == nullptr) return;
            connection->Close(Unavailable("the peer is gone: {}", Message(status)));
          },
      .on_arrival =
          [this](UcxWorker::Arrival arrival) {
            UcxConnection* connection = Find(arrival.from);
            PENSTOCK_CHECK(connection != nullptr);
            connection->OnArrival(std::move(arrival));
          }};
  absl::Status status;
  loop_.Run([&] {
    auto worker = UcxWorker::Open({.loop = loop_,
                                   .listen = listen,
                                   .device = args.device,
                                   .tcp_only = args.tcp_only,
                                   .events = std::move(events)});
    status = worker.status();
    if (worker.ok()) worker_ = *std::move(worker);
  });
  return status;
}

Side::~Side() {
  std::promise<void> empty;
  loop_.Run([&] {
    when_empty_ = [&] { empty.set_value(); };
    for (auto& [endpoint, connection] : connections_) {
      connection->Close(Unavailable("the wire is closed"));
    }
    if (connections_.empty()) std::exchange(when_empty_, nullptr)();
  });
  empty.get_future().wait();
  loop_.Run([this] { worker_.reset(); });
}

UcxConnection* Side::Find(UcxWorker::Endpoint endpoint) {
  const auto found = connections_.find(endpoint);
  return found == connections_.end() ? nullptr : found->second.get();
}

UcxConnection& Side::Add(UcxWorker::Endpoint endpoint) {
  const UcxConnection::Shared shared{
      .worker = *worker_, .receiver = receiver_, .budget = budget_, .instance = instance_};
  auto& slot = connections_[endpoint];
  slot = std::make_unique<UcxConnection>(shared, endpoint);
  return *slot;
}

void Side::Remove(UcxWorker::Endpoint endpoint) {
  connections_.erase(endpoint);
  if (connections_.empty() && when_empty_) std::exchange(when_empty_, nullptr)();
}

void Side::OnAccepted(UcxWorker::Endpoint endpoint) {
  UcxConnection& connection = Add(endpoint);
  connection.WhenClosed([this, endpoint] { loop_.Post([this, endpoint] { Remove(endpoint); }); });
  if (when_empty_) connection.Close(Unavailable("the wire is closed"));
}

absl::StatusOr<std::unique_ptr<WireLane>> Side::Connect(const std::string& endpoint,
                                                        const std::string& instance,
                                                        SteadyTime deadline) {
  ASSIGN_OR_RETURN(const SocketEndpoint peer, ParseEndpoint(endpoint));
  for (int attempt = 1;; ++attempt) {
    auto lane = std::make_unique<UcxLane>(*this, loop_, budget_);
    const absl::Status status = lane->Open(peer, instance, deadline);
    if (status.ok()) return lane;
    const bool final = status.code() != absl::StatusCode::kUnavailable ||
                       std::chrono::steady_clock::now() + kConnectPause >= deadline;
    if (final || attempt == kConnectTries) {
      return Unavailable("wire: no lane to {}: {}", endpoint, Message(status));
    }
    std::this_thread::sleep_for(kConnectPause);
  }
}

absl::Status UcxLane::Open(const SocketEndpoint& peer, const std::string& instance,
                           SteadyTime deadline) {
  auto greeted = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> answer = greeted->get_future();
  loop_.Run([&] {
    const auto endpoint = side_.worker().Connect(peer);
    if (!endpoint.ok()) return greeted->set_value(endpoint.status());
    endpoint_ = *endpoint;
    connection_ = &side_.Add(endpoint_);
    connection_->Greet(instance, [this, greeted](const absl::Status& status) {
      if (status.ok()) transport_ = connection_->transport();
      greeted->set_value(status);
    });
  });
  if (answer.wait_until(deadline) != std::future_status::ready) {
    return DeadlineExceeded("the peer did not answer in time");
  }
  return answer.get();
}

absl::Status UcxLane::Put(std::span<const std::byte> header, std::span<const std::byte> payload,
                          std::function<void(absl::Status)> done) {
  RETURN_IF_ERROR(CheckPutSizes(header.size(), payload.size()));
  if (connection_->closing()) return Unavailable("the lane is broken; connect again");
  RETURN_IF_ERROR(budget_.Take(payload.size()));
  WirePacket packet{.kind = WirePacket::Kind::kAnnounce, .size = payload.size()};
  packet.SetText({reinterpret_cast<const char*>(header.data()), header.size()});
  loop_.Post([this, packet, payload, done = std::move(done)] {
    if (!connection_->closing()) return connection_->Put(packet, {payload, done});
    budget_.Give(payload.size());
    done(Unavailable("the lane broke"));
  });
  return absl::OkStatus();
}

UcxLane::~UcxLane() {
  PENSTOCK_CHECK(!loop_.OnThread(), "a lane is destroyed on its wire's own thread");
  budget_.LaneClosed();
  if (connection_ == nullptr) return;
  std::promise<void> closed;
  loop_.Post([&] {
    connection_->Close(Cancelled("the lane was closed"));
    // The connection goes with the next task, when its call of this is over.
    connection_->WhenClosed([&] {
      loop_.Post([&] {
        side_.Remove(endpoint_);
        closed.set_value();
      });
    });
  });
  closed.get_future().wait();
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxSide>> OpenUcxSide(const UcxSideArgs& args) {
  auto side = std::make_unique<Side>(args);
  RETURN_IF_ERROR(side->Open(args));
  return side;
}

}  // namespace penstock
