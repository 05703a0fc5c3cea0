// The wire between simulated workers, in the place of kvstore/wire/host.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kvstore/wire/host/host_wire.h"
#include "lab/world/machine/network.h"

namespace penstock::world {
namespace {

constexpr size_t kPutsMax = 16;  // of a lane
constexpr Duration kRepeatMax = std::chrono::milliseconds(1500);

struct Target {
  Process* process = nullptr;
  WireReceiver* receiver = nullptr;
};
std::map<std::string, Target> g_targets;

const Target* FindTarget(const std::string& address) {
  const auto found = g_targets.find(address);
  if (found == g_targets.end() || !found->second.process->alive) return nullptr;
  return &found->second;
}

// One Put.
struct Transfer {
  std::vector<std::byte> header;
  std::span<const std::byte> payload;  // the sender's, until the Put has ended
  std::function<void(absl::Status)> done;
  std::byte* target = nullptr;  // once announced
  std::vector<std::byte> kept;  // the payload of a Put that has ended before it landed
  bool landed = false;
  bool ended = false;
};
using TransferRef = std::shared_ptr<Transfer>;

// Shared by its owner's handle and by the events of its transfers.
class Lane final : public Connection, public std::enable_shared_from_this<Lane> {
 public:
  Lane(Process* from, std::string address, Process* to) : address_(std::move(address)) {
    client = from;
    server = to;
  }

  absl::Status Put(std::span<const std::byte> header, std::span<const std::byte> payload,
                   std::function<void(absl::Status)> done) {
    if (over_) return absl::UnavailableError("the lane is broken");
    if (transfers_.size() >= kPutsMax || Draw(network_.faults().put_refused)) {
      return absl::ResourceExhaustedError("too much is under way");
    }
    auto transfer = std::make_shared<Transfer>();
    transfer->header = {header.begin(), header.end()};
    transfer->payload = payload;
    transfer->done = std::move(done);
    transfers_.push_back(transfer);
    At(client, [this, transfer] { Announce(transfer); });
    if (Draw(network_.faults().slab_repeated)) Repeat(transfer);
    return absl::OkStatus();
  }

  // Every Put ends before it returns.
  void Close(const absl::Status& why) {
    over_ = true;
    while (!transfers_.empty()) End(TransferRef(transfers_.front()), why);
  }

  void Break(const Process* dead) override {
    if (std::exchange(over_, true)) return;
    if (dead == client) {
      for (const TransferRef& transfer : std::exchange(transfers_, {})) Lose(transfer);
      return;
    }
    network_.scheduler().After(network_.Delay(client, server), client, [self = shared_from_this()] {
      self->Close(absl::UnavailableError("the peer is gone"));
    });
  }
  bool over() const override { return over_; }

 private:
  bool Draw(uint64_t of_1000) { return network_.random().Chance(of_1000); }

  // Runs it where `process` is once the network lets it through; not when the process is dead.
  void At(Process* process, std::function<void()> event) {
    network_.scheduler().After(network_.Delay(client, server), process,
                               [self = shared_from_this(), event = std::move(event)] { event(); });
  }
  // True when the step must be tried again later.
  bool HeldUp(Process* process, std::function<void()> again) {
    if (!network_.Blocked(client, server)) return false;
    network_.scheduler().After(kHeldUp, process,
                               [self = shared_from_this(), again = std::move(again)] { again(); });
    return true;
  }

  void Announce(const TransferRef& transfer) {
    if (transfer->ended || HeldUp(client, [this, transfer] { Announce(transfer); })) return;
    At(server, [this, transfer] { OnAnnounced(transfer); });
  }

  void OnAnnounced(const TransferRef& transfer) {
    if (transfer->ended) return;
    const Target* const to = FindTarget(address_);
    if (to == nullptr) return EndAtClient(transfer, absl::UnavailableError("the peer is gone"));
    const auto target = to->receiver->OnAnnounced(transfer->header, transfer->payload.size());
    if (!target.ok()) return EndAtClient(transfer, absl::UnavailableError("refused"));
    transfer->target = *target;
    if (Draw(network_.faults().slab_stuck)) return;
    if (Draw(network_.faults().slab_lost)) {
      return EndAtClient(transfer, absl::UnavailableError("lost on the way"));
    }
    if (network_.faults().early_end > 0 && Draw(network_.faults().early_end)) {
      return EndEarly(transfer);
    }
    const Duration time = TimeOnWire(transfer->payload.size());
    network_.scheduler().After(network_.Delay(client, server) + time, server,
                               [self = shared_from_this(), transfer] { self->Land(transfer); });
  }

  void EndEarly(const TransferRef& transfer) {
    transfer->kept = {transfer->payload.begin(), transfer->payload.end()};
    transfer->payload = transfer->kept;
    EndAtClient(transfer, absl::OkStatus());
    network_.scheduler().After(4 * network_.Delay(client, server), server,
                               [self = shared_from_this(), transfer] { self->Land(transfer); });
  }

  // From now, with what the process sends before it.
  Duration TimeOnWire(size_t bytes) {
    const double ns = network_.times().ns_per_byte * static_cast<double>(bytes);
    const TimePoint now = network_.scheduler().now();
    client->sends_until = std::max(client->sends_until, now) + Duration(static_cast<int64_t>(ns));
    return client->sends_until - now;
  }

  void Land(const TransferRef& transfer) {
    if (transfer->ended && transfer->kept.empty()) return;
    if (HeldUp(server, [this, transfer] { Land(transfer); })) return;
    const Target* const to = FindTarget(address_);
    if (to == nullptr) return EndAtClient(transfer, absl::UnavailableError("the peer is gone"));
    const size_t size = transfer->payload.size();
    std::memcpy(transfer->target, transfer->payload.data(), size);
    if (Draw(network_.faults().slab_damaged)) {
      transfer->target[network_.random().Below(size)] ^= std::byte{0x10};
    }
    transfer->landed = true;
    to->receiver->OnLanded(transfer->header, {transfer->target, size});
    EndAtClient(transfer, Draw(network_.faults().end_lost)
                              ? absl::UnavailableError("the outcome is unknown")
                              : absl::OkStatus());
  }

  void EndAtClient(const TransferRef& transfer, const absl::Status& status) {
    At(client, [this, transfer, status] { End(transfer, status); });
  }

  void End(const TransferRef& transfer, const absl::Status& status) {
    if (std::exchange(transfer->ended, true)) return;
    Lose(transfer);
    std::erase(transfers_, transfer);
    transfer->done(status);
  }

  // The receiver keeps its buffer until it hears that nothing will land there.
  void Lose(const TransferRef& transfer) {
    transfer->ended = true;
    if (transfer->target == nullptr || transfer->landed || !transfer->kept.empty()) return;
    At(server, [this, transfer] {
      if (const Target* const to = FindTarget(address_)) {
        to->receiver->OnLost(transfer->header, transfer->target);
      }
    });
  }

  // An old copy, long after: the receiver must see that it is of another time.
  void Repeat(const TransferRef& transfer) {
    const std::vector<std::byte> payload(transfer->payload.begin(), transfer->payload.end());
    const Duration later = network_.random().Between(Duration::zero(), kRepeatMax);
    network_.scheduler().After(
        later, server, [self = shared_from_this(), header = transfer->header, payload] {
          const Target* const to = FindTarget(self->address_);
          if (to == nullptr) return;
          const auto target = to->receiver->OnAnnounced(header, payload.size());
          if (!target.ok()) return;
          std::memcpy(*target, payload.data(), payload.size());
          to->receiver->OnLanded(header, {*target, payload.size()});
        });
  }

  Network& network_ = Network::current();
  const std::string address_;
  std::vector<TransferRef> transfers_;
  bool over_ = false;
};

class LaneHandle final : public WireLane {
 public:
  explicit LaneHandle(std::shared_ptr<Lane> lane) : lane_(std::move(lane)) {}
  ~LaneHandle() override { lane_->Close(absl::CancelledError("the lane was closed")); }
  absl::Status Put(std::span<const std::byte> header, std::span<const std::byte> payload,
                   std::function<void(absl::Status)> done) override {
    return lane_->Put(header, payload, std::move(done));
  }
  std::string transport() const override { return "simulated"; }

 private:
  const std::shared_ptr<Lane> lane_;
};

class SimWire final : public Wire {
 public:
  SimWire(std::string address, WireReceiver& receiver)
      : process_(Scheduler::current()->process()), address_(std::move(address)) {
    g_targets[address_] = {.process = process_, .receiver = &receiver};
  }
  ~SimWire() override { g_targets.erase(address_); }

  std::string address() const override { return address_; }
  absl::StatusOr<std::unique_ptr<WireLane>> Connect(const std::string& address,
                                                    int64_t timeout_ms) override {
    Network& network = Network::current();
    const Target* const to = FindTarget(address);
    if (to == nullptr) return absl::UnavailableError("no peer is there");
    network.scheduler().Sleep(network.Delay(process_, to->process));
    if (network.Blocked(process_, to->process) || network.Blocked(to->process, process_)) {
      network.scheduler().Sleep(std::chrono::milliseconds(timeout_ms));
      return absl::UnavailableError("the peer does not answer");
    }
    if (FindTarget(address) == nullptr) return absl::UnavailableError("no peer is there");
    auto lane = std::make_shared<Lane>(process_, address, FindTarget(address)->process);
    network.Add(lane);
    return std::make_unique<LaneHandle>(std::move(lane));
  }

 private:
  Process* const process_;
  const std::string address_;
};

}  // namespace
}  // namespace penstock::world

namespace penstock {

absl::StatusOr<std::unique_ptr<Wire>> MakeHostWire(const HostWireOptions&, WireReceiver& receiver) {
  const world::Process* const process = world::Scheduler::current()->process();
  return std::make_unique<world::SimWire>(fmt::format("wire of {}", process->name), receiver);
}

}  // namespace penstock
