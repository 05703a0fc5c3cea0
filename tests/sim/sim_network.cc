#include "tests/sim/sim_network.h"

#include <algorithm>
#include <cstring>

namespace penstock::sim {
namespace {

// How often something that is held up looks again.
constexpr Duration kHeldUp = std::chrono::milliseconds(7);
constexpr size_t kPutsMax = 6;  // a lane's

}  // namespace

// Control.

class SimStream::SenderEnd final : public HandoffSenderChannel {
 public:
  explicit SenderEnd(std::shared_ptr<SimStream> stream) : stream_(std::move(stream)) {}
  void Send(const v1::HandoffSenderMessage& message) override {
    if (stream_->sender_closed_) return;
    stream_->ToDecode([stream = stream_, message] {
      if (!stream->heard_at_) stream->heard_at_ = stream->network_.simulation_.now();
      stream->decode_->receiver->OnControl(stream->receiver_end_, message);
    });
  }
  void Close() override {
    if (std::exchange(stream_->sender_closed_, true)) return;
    stream_->ToDecode([stream = stream_] { stream->TellDecode(); });
  }

 private:
  const std::shared_ptr<SimStream> stream_;
};

class SimStream::ReceiverEnd final : public HandoffReceiverChannel {
 public:
  explicit ReceiverEnd(std::weak_ptr<SimStream> stream) : stream_(std::move(stream)) {}
  void Send(const v1::HandoffReceiverMessage& message) override {
    const auto stream = stream_.lock();
    if (!stream || stream->receiver_closed_) return;
    stream->ToPrefill(
        [stream, message] { stream->prefill_->sender->OnControl(stream->key_, message); });
  }
  void Close() override {
    const auto stream = stream_.lock();
    if (!stream || std::exchange(stream->receiver_closed_, true)) return;
    stream->ToPrefill(
        [stream] { stream->prefill_->sender->OnControlClosed(stream->key_, absl::OkStatus()); });
  }

 private:
  const std::weak_ptr<SimStream> stream_;
};

SimStream::SimStream(SimNetwork& network, HandoffKey key, ProcessRef prefill, ProcessRef decode)
    : network_(network),
      key_(key),
      prefill_(std::move(prefill)),
      decode_(std::move(decode)),
      opened_at_(network.simulation_.now()) {}

std::shared_ptr<HandoffSenderChannel> SimStream::sender_channel() {
  return std::make_shared<SenderEnd>(shared_from_this());
}

bool SimStream::connects(const Process& process) const {
  return &process == prefill_.get() || &process == decode_.get();
}

void SimStream::ToDecode(Delivery delivery) {
  to_decode_.push_back(std::move(delivery));
  network_.simulation_.After(network_.Delay(), [self = shared_from_this()] {
    self->Deliver(&self->to_decode_, self->decode_);
  });
}

void SimStream::ToPrefill(Delivery delivery) {
  to_prefill_.push_back(std::move(delivery));
  network_.simulation_.After(network_.Delay(), [self = shared_from_this()] {
    self->Deliver(&self->to_prefill_, self->prefill_);
  });
}

// One event for each message, and each takes the front: order is kept whatever the delays.
void SimStream::Deliver(std::deque<Delivery>* queue, const ProcessRef& at) {
  if (!at->alive) queue->clear();
  if (queue->empty()) return;
  const ProcessRef& from = at == prefill_ ? decode_ : prefill_;
  if (!network_.Passes(*from, *at)) {
    network_.simulation_.After(
        kHeldUp, [self = shared_from_this(), queue, at] { self->Deliver(queue, at); });
    return;
  }
  const Delivery delivery = std::move(queue->front());
  queue->pop_front();
  delivery();
}

void SimStream::Break() {
  if (std::exchange(broken_, true)) return;
  network_.simulation_.Note(fmt::format("stream of {} breaks", HandoffKeyText(key_)));
  to_decode_.clear();
  to_prefill_.clear();
  if (!std::exchange(sender_closed_, true)) {
    ToDecode([self = shared_from_this()] { self->TellDecode(); });
  }
  if (!std::exchange(receiver_closed_, true)) {
    ToPrefill([self = shared_from_this()] { self->TellPrefill(absl::UnavailableError("broken")); });
  }
}

void SimStream::TellDecode() {
  decode_told_at_ = network_.simulation_.now();
  decode_->receiver->OnControlClosed(receiver_end_.get());
}

void SimStream::TellPrefill(const absl::Status& why) {
  prefill_told_ = true;
  prefill_->sender->OnControlClosed(key_, why);
}

// Data.

struct SimTransfer {
  ProcessRef source;
  std::string address;
  std::vector<std::byte> header;
  std::span<const std::byte> payload;
  std::function<void(absl::Status)> done;
  std::vector<std::shared_ptr<SimTransfer>>* lane = nullptr;  // while not ended
  ProcessRef target_process;
  std::byte* target = nullptr;  // once announced
  std::vector<std::byte> kept;  // of a Put that ended early: the peer has it, but was not told
  bool landed = false;
  bool ended = false;
};

class SimLane final : public WireLane {
 public:
  SimLane(SimNetwork& network, ProcessRef source, std::string address)
      : network_(network), source_(std::move(source)), address_(std::move(address)) {}

  ~SimLane() override {
    while (!transfers_.empty()) {
      const auto first = transfers_.front();
      network_.End(first, absl::CancelledError("the lane was closed"));
    }
  }

  absl::Status Put(std::span<const std::byte> header, std::span<const std::byte> payload,
                   std::function<void(absl::Status)> done) override {
    Simulation& simulation = network_.simulation_;
    if (transfers_.size() >= kPutsMax || simulation.Chance(network_.faults_.put_refused)) {
      return absl::ResourceExhaustedError("too much is under way");
    }
    const auto found = network_.addresses_.find(address_);
    if (found == network_.addresses_.end()) return absl::UnavailableError("the lane is broken");
    auto transfer = std::make_shared<SimTransfer>();
    *transfer = {.source = source_,
                 .address = address_,
                 .header = {header.begin(), header.end()},
                 .payload = payload,
                 .done = std::move(done),
                 .lane = &transfers_};
    transfers_.push_back(transfer);
    simulation.After(network_.Delay(),
                     [this_network = &network_, transfer] { this_network->Announce(transfer); });
    if (simulation.Chance(network_.faults_.slab_replayed)) {
      network_.Replay(address_, transfer->header, {payload.begin(), payload.end()});
    }
    return absl::OkStatus();
  }

  std::string transport() const override { return "simulated"; }

 private:
  SimNetwork& network_;
  const ProcessRef source_;
  const std::string address_;
  std::vector<std::shared_ptr<SimTransfer>> transfers_;
};

namespace {

class SimWire final : public Wire {
 public:
  explicit SimWire(
      std::function<absl::StatusOr<std::unique_ptr<WireLane>>(const std::string&)> connect)
      : connect_(std::move(connect)) {}
  std::string address() const override { return "prefill"; }
  absl::StatusOr<std::unique_ptr<WireLane>> Connect(const std::string& address, int64_t) override {
    return connect_(address);
  }

 private:
  const std::function<absl::StatusOr<std::unique_ptr<WireLane>>(const std::string&)> connect_;
};

}  // namespace

void SimNetwork::Attach(const std::string& address, const ProcessRef& decode) {
  addresses_[address] = decode;
}

std::unique_ptr<Wire> SimNetwork::MakeWire(const ProcessRef& prefill) {
  return std::make_unique<SimWire>(
      [this, prefill](const std::string& address) -> absl::StatusOr<std::unique_ptr<WireLane>> {
        const auto found = addresses_.find(address);
        if (found == addresses_.end() || Partitioned(*prefill, *found->second)) {
          return absl::UnavailableError("no peer there");
        }
        return std::make_unique<SimLane>(*this, prefill, address);
      });
}

SimNetwork::~SimNetwork() {
  // An undelivered message holds its stream, which holds its undelivered messages.
  for (const auto& weak : streams_) {
    if (const auto stream = weak.lock()) {
      stream->to_decode_.clear();
      stream->to_prefill_.clear();
    }
  }
}

std::shared_ptr<SimStream> SimNetwork::OpenStream(const HandoffKey& key, const ProcessRef& prefill,
                                                  const ProcessRef& decode) {
  auto stream = std::make_shared<SimStream>(*this, key, prefill, decode);
  stream->receiver_end_ = std::make_shared<SimStream::ReceiverEnd>(stream);
  std::erase_if(streams_, [](const auto& weak) { return weak.expired(); });
  streams_.push_back(stream);
  if (!decode->alive) stream->Break();
  return stream;
}

void SimNetwork::Partition(int host_a, int host_b, bool on) {
  const std::pair<int, int> pair = std::minmax(host_a, host_b);
  if (on) {
    partitions_.insert(pair);
  } else {
    partitions_.erase(partitions_.find(pair));
  }
}

bool SimNetwork::Partitioned(const Process& a, const Process& b) const {
  return partitions_.contains(std::minmax(a.host, b.host));
}

bool SimNetwork::Passes(const Process& a, const Process& b) const {
  return !Partitioned(a, b) && b.paused_until <= simulation_.now();
}

void SimNetwork::Kill(const ProcessRef& process) {
  process->alive = false;
  std::erase_if(addresses_, [&](const auto& entry) { return entry.second == process; });
  for (const auto& weak : streams_) {
    if (const auto stream = weak.lock(); stream && stream->connects(*process)) stream->Break();
  }
}

void SimNetwork::BreakSomeStream() {
  std::vector<std::shared_ptr<SimStream>> open;
  for (const auto& weak : streams_) {
    if (auto stream = weak.lock(); stream && !stream->broken_) open.push_back(stream);
  }
  if (!open.empty()) open[simulation_.Below(open.size())]->Break();
}

void SimNetwork::Announce(const TransferRef& transfer) {
  if (transfer->ended) return;
  const auto found = addresses_.find(transfer->address);
  if (found == addresses_.end()) {
    End(transfer, absl::UnavailableError("the peer is gone"));
    return;
  }
  transfer->target_process = found->second;
  if (!Passes(*transfer->source, *found->second)) {
    simulation_.After(kHeldUp, [this, transfer] { Announce(transfer); });
    return;
  }
  const auto target =
      found->second->receiver->OnAnnounced(transfer->header, transfer->payload.size());
  if (!target.ok()) {
    End(transfer, absl::UnavailableError("refused"));
    return;
  }
  transfer->target = *target;
  if (simulation_.Chance(faults_.slab_lost)) {
    simulation_.After(
        Delay(), [this, transfer] { End(transfer, absl::UnavailableError("lost on the way")); });
    return;
  }
  if (simulation_.Chance(faults_.slab_stuck)) {
    simulation_.Note("a slab is stuck");
    return;
  }
  if (simulation_.Chance(faults_.early_end)) {
    transfer->kept = {transfer->payload.begin(), transfer->payload.end()};
    transfer->payload = transfer->kept;
    End(transfer, absl::OkStatus());
    simulation_.After(Delay() * 4, [this, transfer] { Land(transfer); });
    return;
  }
  simulation_.After(Delay(), [this, transfer] { Land(transfer); });
}

void SimNetwork::Land(const TransferRef& transfer) {
  if (transfer->ended && transfer->kept.empty()) return;
  const ProcessRef& decode = transfer->target_process;
  if (!decode->alive) {
    End(transfer, absl::UnavailableError("the peer is gone"));
    return;
  }
  if (!Passes(*transfer->source, *decode)) {
    simulation_.After(kHeldUp, [this, transfer] { Land(transfer); });
    return;
  }
  const size_t size = transfer->payload.size();
  std::memcpy(transfer->target, transfer->payload.data(), size);
  if (simulation_.Chance(faults_.slab_damaged)) {
    simulation_.Note("a slab is damaged");
    transfer->target[simulation_.Below(size)] ^= std::byte{0x10};
  }
  transfer->landed = true;
  decode->receiver->OnLanded(transfer->header, {transfer->target, size});
  const absl::Status end = simulation_.Chance(faults_.end_lost)
                               ? absl::UnavailableError("nobody knows")
                               : absl::OkStatus();
  simulation_.After(Delay(), [this, transfer, end] { End(transfer, end); });
}

void SimNetwork::End(const TransferRef& transfer, const absl::Status& status) {
  if (std::exchange(transfer->ended, true)) return;
  if (transfer->target != nullptr && !transfer->landed && transfer->kept.empty()) {
    simulation_.After(Delay(), [transfer] {
      const ProcessRef& decode = transfer->target_process;
      if (decode->alive) decode->receiver->OnLost(transfer->header, transfer->target);
    });
  }
  std::erase(*transfer->lane, transfer);
  transfer->done(status);
}

// An old copy, long after: the receiver must see that it is of another time.
void SimNetwork::Replay(const std::string& address, std::vector<std::byte> header,
                        std::vector<std::byte> payload) {
  const Duration later = simulation_.Between(Delay(), std::chrono::milliseconds(1500));
  simulation_.After(later, [this, address, header, payload] {
    const auto found = addresses_.find(address);
    if (found == addresses_.end() || found->second->paused_until > simulation_.now()) return;
    const auto target = found->second->receiver->OnAnnounced(header, payload.size());
    if (!target.ok()) return;
    std::memcpy(*target, payload.data(), payload.size());
    found->second->receiver->OnLanded(header, {*target, payload.size()});
  });
}

}  // namespace penstock::sim
