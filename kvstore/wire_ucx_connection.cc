#include "kvstore/wire_ucx_connection.h"

#include <cstring>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

// Announced by one peer and not yet received; far above any WireLimits::messages.
constexpr size_t kWaitingMax = 65536;
// Received at a time from one peer. More would hold more of the receiver's memory, no faster.
constexpr size_t kReceivingMax = 8;

std::span<const std::byte> Bytes(const WirePacket& packet) {
  return std::as_bytes(std::span(&packet, 1));
}

}  // namespace

void UcxConnection::Greet(const std::string& instance,
                          std::function<void(absl::Status)> on_greeted) {
  on_greeted_ = std::move(on_greeted);
  WirePacket hello{.kind = WirePacket::Kind::kHello};
  hello.SetText(instance);
  SendPacket(hello);
}

void UcxConnection::Put(const WirePacket& announcement, Transfer transfer) {
  PENSTOCK_CHECK(!closing_);
  const uint64_t id = next_id_++;
  Outgoing& outgoing = outgoing_[id];
  outgoing.packet = announcement;
  outgoing.packet.id = id;
  outgoing.transfer = std::move(transfer);
  ++operations_;
  shared_.worker.Send(endpoint_, Bytes(outgoing.packet), outgoing.transfer.payload,
                      [this, id](const absl::Status& status) { OnSent(id, status); });
}

void UcxConnection::OnSent(uint64_t id, const absl::Status& status) {
  outgoing_.at(id).sent = true;
  if (!status.ok()) Close(Unavailable("the lane broke: {}", Message(status)));
  EndIfOver(id);
  OperationEnded();
}

void UcxConnection::OnEnded(const WirePacket& packet) {
  const auto found = outgoing_.find(packet.id);
  if (found == outgoing_.end() || found->second.answered) {
    return Close(Unavailable("the lane broke: the peer answers what was not asked"));
  }
  found->second.answered = true;
  found->second.answer = packet.Status();
  EndIfOver(packet.id);
}

void UcxConnection::EndIfOver(uint64_t id) {
  const auto found = outgoing_.find(id);
  if (found == outgoing_.end()) return;
  Outgoing& outgoing = found->second;
  if (!outgoing.sent || !(outgoing.answered || closing_)) return;
  const Transfer transfer = std::move(outgoing.transfer);
  const absl::Status status = outgoing.answered ? outgoing.answer : close_status_;
  outgoing_.erase(found);
  shared_.budget.Give(transfer.payload.size());
  transfer.done(status);
}

void UcxConnection::OnArrival(UcxWorker::Arrival arrival) {
  const auto packet = ParseWirePacket(arrival.header);
  const bool announces = packet.ok() && greeted_ && packet->kind == WirePacket::Kind::kAnnounce &&
                         packet->size == arrival.size && waiting_.size() < kWaitingMax;
  if (announces && !closing_) {
    waiting_.push_back({.arrival = std::move(arrival), .packet = *packet});
    return ReceiveWaiting();
  }
  if (arrival.rendezvous != nullptr) shared_.worker.Drop(arrival);
  if (closing_) return;
  if (packet.ok() && arrival.size == 0) {
    if (packet->kind == WirePacket::Kind::kHello && !greeted_) return OnHello(*packet);
    if (packet->kind == WirePacket::Kind::kEnded) return OnEnded(*packet);
    if (packet->kind == WirePacket::Kind::kWelcome && on_greeted_) {
      return std::exchange(on_greeted_, nullptr)(packet->Status());
    }
  }
  Close(Unavailable("the lane broke: the peer does not speak this protocol"));
}

void UcxConnection::OnHello(const WirePacket& hello) {
  WirePacket welcome{.kind = WirePacket::Kind::kWelcome};
  greeted_ = hello.Text() == shared_.instance;
  if (!greeted_)
    welcome.SetStatus(FailedPrecondition("the peer has been replaced by another process"));
  SendPacket(welcome);
}

void UcxConnection::ReceiveWaiting() {
  while (!closing_ && !waiting_.empty() && receiving_ < kReceivingMax) {
    Incoming incoming = std::move(waiting_.front());
    waiting_.pop_front();
    Receive(std::move(incoming));
  }
}

void UcxConnection::Receive(Incoming incoming) {
  const auto target =
      shared_.receiver.OnAnnounced(incoming.packet.TextBytes(), incoming.arrival.size);
  if (!target.ok()) {
    if (incoming.arrival.rendezvous != nullptr) shared_.worker.Drop(incoming.arrival);
    return SendEnded(incoming.packet.id,
                     Unavailable("refused by the peer: {}", Message(target.status())));
  }
  incoming.target = *target;
  if (incoming.arrival.rendezvous == nullptr) {
    if (!incoming.arrival.eager.empty()) {
      std::memcpy(*target, incoming.arrival.eager.data(), incoming.arrival.eager.size());
    }
    return OnReceived(incoming, absl::OkStatus());
  }
  ++receiving_;
  ++operations_;
  const UcxWorker::Arrival arrival = incoming.arrival;
  shared_.worker.Receive(arrival, *target,
                         [this, incoming = std::move(incoming)](const absl::Status& status) {
                           --receiving_;
                           OnReceived(incoming, status);
                           ReceiveWaiting();
                           OperationEnded();
                         });
}

void UcxConnection::OnReceived(const Incoming& incoming, const absl::Status& status) {
  if (status.ok()) {
    shared_.receiver.OnLanded(incoming.packet.TextBytes(),
                              std::span(incoming.target, incoming.arrival.size));
    if (!closing_) SendEnded(incoming.packet.id, absl::OkStatus());
  } else {
    shared_.receiver.OnLost(incoming.packet.TextBytes(), incoming.target);
    Close(Unavailable("the lane broke: {}", Message(status)));
  }
}

void UcxConnection::SendEnded(uint64_t id, const absl::Status& status) {
  WirePacket packet{.kind = WirePacket::Kind::kEnded, .id = id};
  packet.SetStatus(status);
  SendPacket(packet);
}

void UcxConnection::SendPacket(const WirePacket& packet) {
  // UCX reads the header until the send is over.
  auto held = std::make_shared<const WirePacket>(packet);
  ++operations_;
  shared_.worker.Send(endpoint_, Bytes(*held), {}, [this, held](const absl::Status& status) {
    if (!status.ok()) Close(Unavailable("the lane broke: {}", Message(status)));
    OperationEnded();
  });
}

void UcxConnection::Close(const absl::Status& status) {
  if (closing_) return;
  closing_ = true;
  close_status_ = status;
  for (const Incoming& incoming : waiting_) {
    if (incoming.arrival.rendezvous != nullptr) shared_.worker.Drop(incoming.arrival);
  }
  waiting_.clear();
  ++operations_;
  shared_.worker.Close(endpoint_, [this] { OperationEnded(); });
  if (on_greeted_) std::exchange(on_greeted_, nullptr)(status);
  // Those that UCX has sent, and that only lack the peer's answer. The rest follow in OnSent.
  std::vector<uint64_t> ids;
  for (const auto& [id, outgoing] : outgoing_) ids.push_back(id);
  for (const uint64_t id : ids) EndIfOver(id);
}

void UcxConnection::WhenClosed(std::function<void()> task) {
  when_closed_ = std::move(task);
  if (closing_ && operations_ == 0) std::exchange(when_closed_, nullptr)();
}

void UcxConnection::OperationEnded() {
  --operations_;
  if (closing_ && operations_ == 0 && when_closed_) std::exchange(when_closed_, nullptr)();
}

}  // namespace penstock
