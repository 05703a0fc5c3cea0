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

UcxConnection::~UcxConnection() { Close(Cancelled("the lane was closed")); }

void UcxConnection::Greet(const std::string& instance,
                          std::function<void(absl::Status)> on_greeted) {
  is_lane_ = true;
  on_greeted_ = std::move(on_greeted);
  absl::Status status = OpenLink();
  if (status.ok()) status = StartDoor();
  if (!status.ok()) return Close(status);
  WirePacket hello{.kind = WirePacket::Kind::kHello};
  hello.SetText(instance);
  door_.Send(hello);
  for (const WirePacket& piece : SplitAddress(link_->address())) door_.Send(piece);
}

void UcxConnection::Admit() {
  const absl::Status status = StartDoor();
  if (!status.ok()) Close(status);
}

absl::Status UcxConnection::OpenLink() {
  ASSIGN_OR_RETURN(
      link_, shared_.context.NewLink(
                 shared_.loop,
                 {.on_arrival = [this](UcxLink::Arrival arrival) { OnArrival(std::move(arrival)); },
                  .on_failed =
                      [this](const absl::Status& status) {
                        Close(Unavailable("the lane broke: {}", Message(status)));
                      }}));
  return absl::OkStatus();
}

absl::Status UcxConnection::StartDoor() {
  return door_.Start({.on_packet = [this](const WirePacket& packet) { OnDoorPacket(packet); },
                      .on_closed = [this](const absl::Status& status) { Close(status); }});
}

void UcxConnection::OnDoorPacket(const WirePacket& packet) {
  if (closing_) return;
  const absl::Status status = AtDoor(packet);
  if (!status.ok()) Close(status);
}

// Each side says hello or welcome, then its UCX address in pieces, then nothing more.
absl::Status UcxConnection::AtDoor(const WirePacket& packet) {
  if (packet.kind == WirePacket::Kind::kAddress && welcomed_) {
    RETURN_IF_ERROR(peer_address_.Add(packet));
    return peer_address_.complete() ? MeetPeer() : absl::OkStatus();
  }
  if (is_lane_ && packet.kind == WirePacket::Kind::kWelcome && !welcomed_) {
    welcomed_ = true;
    return packet.Status();
  }
  if (!is_lane_ && packet.kind == WirePacket::Kind::kHello && !welcomed_) {
    welcomed_ = true;
    WirePacket welcome{.kind = WirePacket::Kind::kWelcome};
    if (packet.Text() == shared_.instance) {
      RETURN_IF_ERROR(OpenLink());
    } else {
      welcome.SetStatus(FailedPrecondition("the peer has been replaced by another process"));
    }
    door_.Send(welcome);
    if (!link_) return absl::OkStatus();  // The other side leaves.
    for (const WirePacket& piece : SplitAddress(link_->address())) door_.Send(piece);
    return absl::OkStatus();
  }
  return Unavailable("the peer does not speak this protocol");
}

absl::Status UcxConnection::MeetPeer() {
  if (!link_) return Unavailable("the peer stays where it is not wanted");
  RETURN_IF_ERROR(link_->Connect(peer_address_.address()));
  // The answer to this shows that the path works both ways.
  if (is_lane_) SendPacket(WirePacket{.kind = WirePacket::Kind::kHello});
  return absl::OkStatus();
}

void UcxConnection::Put(const WirePacket& announcement, Transfer transfer) {
  PENSTOCK_CHECK(!closing_);
  const uint64_t id = next_id_++;
  Outgoing& outgoing = outgoing_[id];
  outgoing.packet = announcement;
  outgoing.packet.id = id;
  outgoing.transfer = std::move(transfer);
  link_->Send(Bytes(outgoing.packet), outgoing.transfer.payload,
              [this, id](const absl::Status& status) { OnSent(id, status); });
}

void UcxConnection::OnSent(uint64_t id, const absl::Status& status) {
  outgoing_.at(id).sent = true;
  if (!status.ok()) Close(Unavailable("the lane broke: {}", Message(status)));
  EndIfOver(id);
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

void UcxConnection::OnArrival(UcxLink::Arrival arrival) {
  const auto packet = ParseWirePacket(arrival.header);
  const bool announces = packet.ok() && !is_lane_ && packet->kind == WirePacket::Kind::kAnnounce &&
                         packet->size == arrival.size && waiting_.size() < kWaitingMax;
  if (announces) {
    waiting_.push_back({.arrival = std::move(arrival), .packet = *packet});
    return ReceiveWaiting();
  }
  link_->Drop(arrival);
  if (packet.ok() && arrival.size == 0) {
    if (packet->kind == WirePacket::Kind::kHello && !is_lane_) {
      return SendPacket(WirePacket{.kind = WirePacket::Kind::kWelcome});
    }
    if (packet->kind == WirePacket::Kind::kEnded && is_lane_) return OnEnded(*packet);
    if (packet->kind == WirePacket::Kind::kWelcome && on_greeted_) {
      return std::exchange(on_greeted_, nullptr)(absl::OkStatus());
    }
  }
  Close(Unavailable("the lane broke: the peer does not speak this protocol"));
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
    link_->Drop(incoming.arrival);
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
  const UcxLink::Arrival arrival = incoming.arrival;
  link_->Receive(arrival, *target,
                 [this, incoming = std::move(incoming)](const absl::Status& status) {
                   --receiving_;
                   OnReceived(incoming, status);
                   ReceiveWaiting();
                 });
}

void UcxConnection::OnReceived(const Incoming& incoming, const absl::Status& status) {
  if (status.ok()) {
    shared_.receiver.OnLanded(incoming.packet.TextBytes(),
                              std::span(incoming.target, incoming.arrival.size));
    return SendEnded(incoming.packet.id, absl::OkStatus());
  }
  shared_.receiver.OnLost(incoming.packet.TextBytes(), incoming.target);
  Close(Unavailable("the lane broke: {}", Message(status)));
}

void UcxConnection::SendEnded(uint64_t id, const absl::Status& status) {
  WirePacket packet{.kind = WirePacket::Kind::kEnded, .id = id};
  packet.SetStatus(status);
  SendPacket(packet);
}

void UcxConnection::SendPacket(const WirePacket& packet) {
  if (closing_) return;
  // UCX reads the header until the send is over.
  auto held = std::make_shared<const WirePacket>(packet);
  link_->Send(Bytes(*held), {}, [this, held](const absl::Status& status) {
    if (!status.ok()) Close(Unavailable("the lane broke: {}", Message(status)));
  });
}

void UcxConnection::Close(const absl::Status& status) {
  if (closing_.exchange(true)) return;
  close_status_ = status;
  waiting_.clear();  // The messages go with the link.
  if (link_) link_->Cut();
  door_.HangUp();
  if (on_greeted_) std::exchange(on_greeted_, nullptr)(status);
  // Those that UCX has sent, and that only lack the peer's answer.
  while (!outgoing_.empty()) {
    const uint64_t id = outgoing_.begin()->first;
    outgoing_.begin()->second.sent = true;  // UCX has let go of everything.
    EndIfOver(id);
  }
}

}  // namespace penstock
