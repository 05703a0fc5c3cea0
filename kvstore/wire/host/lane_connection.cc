#include "kvstore/wire/host/lane_connection.h"

#include <cstring>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

// Limit of messages that one peer has announced and that are not received; far above any
// WireLimits::messages.
constexpr size_t kWaitingLanesMax = 1024;
// Messages received at a time from one peer. More would use more receiver memory without more
// speed.
constexpr size_t kReceivingMax = 8;
// Smaller payloads arrive by the link before NCCL's receiver could request them.
constexpr size_t kNcclPayloadMin = size_t{64} << 10;

std::span<const std::byte> Bytes(const WirePacket& packet) {
  return std::as_bytes(std::span(&packet, 1));
}

}  // namespace

LaneConnection::~LaneConnection() { Close(Cancelled("the lane was closed")); }

void LaneConnection::Greet(Hello greeting) {
  is_lane_ = true;
  peer_ = greeting.peer;
  peer_has_nccl_ = greeting.nccl;
  on_greeted_ = std::move(greeting.on_greeted);
  const absl::Status status = StartHandshake();
  if (!status.ok()) return Close(status);
  WirePacket hello{.kind = WirePacket::Kind::kHello};
  hello.SetText(greeting.instance);
  handshake_.Send(hello);
}

void LaneConnection::Admit(const WirePacket& hello, const std::string& secret) {
  const bool expected = hello.Text() == shared_.instance;
  absl::Status status = StartHandshake();
  if (status.ok() && expected) status = OpenLink(secret);
  if (!status.ok()) return Close(status);
  WirePacket welcome{.kind = WirePacket::Kind::kWelcome};
  if (!expected) {
    // The other side closes.
    welcome.SetStatus(FailedPrecondition("the peer has been replaced by another process"));
  }
  handshake_.Send(welcome);
  if (!expected) return;
  for (const WirePacket& piece : SplitAddress(link_->address())) handshake_.Send(piece);
}

absl::Status LaneConnection::OpenLink(const std::string& secret) {
  ASSIGN_OR_RETURN(
      link_,
      shared_.links.NewLink(
          {.loop = shared_.loop,
           .events = {
               .on_arrival = [this](WireLink::Arrival arrival) { OnArrival(std::move(arrival)); },
               .on_failed =
                   [this, sealed = !secret.empty()](const absl::Status& status) {
                     if (absl::IsDataLoss(status)) {
                       shared_.on_refused(sealed ? WireRefusal::kTag : WireRefusal::kProtocol);
                     }
                     BreakUnless(status);
                   }},
           .secret = secret,
           .peer = peer_}));
  return absl::OkStatus();
}

absl::Status LaneConnection::StartHandshake() {
  return handshake_.Start(
      {.on_packet = [this](const WirePacket& packet) { OnHandshakePacket(packet); },
       .on_closed = [this](const absl::Status& status) { Close(status); }});
}

void LaneConnection::OnHandshakePacket(const WirePacket& packet) {
  if (closing_) return;
  const absl::Status status = HandleHandshake(packet);
  if (!status.ok()) Close(status);
}

// After hello and welcome each side sends its link's address in pieces, then nothing more.
absl::Status LaneConnection::HandleHandshake(const WirePacket& packet) {
  if (packet.kind == WirePacket::Kind::kAddress && link_) return OnPeerAddress(packet);
  if (packet.kind == WirePacket::Kind::kWelcome && is_lane_ && !link_) return OnWelcome(packet);
  return Unavailable("the peer does not speak this protocol");
}

absl::Status LaneConnection::OnWelcome(const WirePacket& welcome) {
  RETURN_IF_ERROR(welcome.Status());
  RETURN_IF_ERROR(OpenLink(handshake_.ExportSecret(kSecretLabel)));
  for (const WirePacket& piece : SplitAddress(link_->address())) handshake_.Send(piece);
  return absl::OkStatus();
}

absl::Status LaneConnection::OnPeerAddress(const WirePacket& piece) {
  RETURN_IF_ERROR(peer_address_.Add(piece));
  if (!peer_address_.complete()) return absl::OkStatus();
  RETURN_IF_ERROR(link_->Connect(peer_address_.address()));
  // The answer to this packet proves that the path works in both directions.
  if (is_lane_) SendPacket(WirePacket{.kind = WirePacket::Kind::kHello});
  if (std::exchange(link_hello_waits_, false)) SendLinkWelcome();
  return absl::OkStatus();
}

// The caller's first message can come before its address.
bool LaneConnection::OnLinkHello() {
  if (is_lane_ || std::exchange(established_, true)) return false;
  link_hello_waits_ = !link_->connected();
  if (!link_hello_waits_) SendLinkWelcome();
  return true;
}

void LaneConnection::SendLinkWelcome() {
  SendPacket(
      WirePacket{.kind = WirePacket::Kind::kWelcome, .code = static_cast<uint32_t>(MemoryHere())});
}

void LaneConnection::Put(const WirePacket& announcement, Transfer transfer) {
  PENSTOCK_CHECK(!closing_);
  const bool on_device = transfer.payload.memory == MemoryKind::kDevice;
  const bool nccl_failed = nccl_sending_ != nullptr && nccl_stopped_;
  if (on_device && !TakesDeviceMemory() && !nccl_failed) {
    shared_.budget.Give(transfer.payload.bytes.size());
    return transfer.done(
        Unavailable("the lane no longer sends from GPU memory; send from host memory"));
  }
  const uint64_t id = next_id_++;
  Outgoing& outgoing = outgoing_[id];
  outgoing.packet = announcement;
  outgoing.packet.id = id;
  outgoing.transfer = std::move(transfer);
  outgoing.by_nccl =
      nccl_ready_ && outgoing.transfer.payload.bytes.size() >= (on_device ? 1 : kNcclPayloadMin);
  if (outgoing.by_nccl) return Announce(id, WirePacket::Way::kNccl, WirePayload());
  SendByLink(id, WirePacket::Way::kLink);
}

// `payload`: what the link sends with the announcement.
void LaneConnection::Announce(uint64_t id, WirePacket::Way way, const WirePayload& payload) {
  Outgoing& outgoing = outgoing_.at(id);
  ++outgoing.sends;
  // The link reads the header until the send has ended.
  const auto held = std::make_shared<WirePacket>(outgoing.packet);
  held->code = static_cast<uint32_t>(way);
  link_->Send(Bytes(*held), payload,
              [this, id, held](const absl::Status& status) { OnSent(id, status); });
}

void LaneConnection::OnSent(uint64_t id, const absl::Status& status) {
  --outgoing_.at(id).sends;
  BreakUnless(status);
  EndIfOver(id);
}

bool LaneConnection::OnEnded(const WirePacket& packet) {
  const auto found = outgoing_.find(packet.id);
  if (found == outgoing_.end() || found->second.answered) return false;
  // `done` would return the payload to its owner while NCCL still needs it.
  if (nccl_sending_ && nccl_sending_->Waiting(packet.id)) return false;
  found->second.answered = true;
  found->second.answer = packet.Status();
  EndIfOver(packet.id);
  return true;
}

void LaneConnection::EndIfOver(uint64_t id) {
  const auto found = outgoing_.find(id);
  if (found == outgoing_.end()) return;
  Outgoing& outgoing = found->second;
  if (outgoing.sends > 0 || !(outgoing.answered || closing_)) return;
  const Transfer transfer = std::move(outgoing.transfer);
  const absl::Status status = outgoing.answered ? outgoing.answer : close_status_;
  outgoing_.erase(found);
  shared_.budget.Give(transfer.payload.bytes.size());
  transfer.done(status);
}

void LaneConnection::OnArrival(WireLink::Arrival arrival) {
  const auto packet = ParseWirePacket(arrival.header);
  bool taken = false;
  if (packet.ok() && packet->kind == WirePacket::Kind::kAnnounce) {
    taken = OnAnnounced(*packet, arrival);
  } else if (packet.ok() && packet->kind == WirePacket::Kind::kProbe) {
    taken = OnProbe(arrival);
  } else if (packet.ok() && arrival.rendezvous == 0) {
    taken = TakePacket(*packet, arrival);
  }
  if (taken) return;
  link_->Drop(arrival);
  Close(Unavailable("the lane broke: the peer does not speak this protocol"));
}

// Handles a packet; false when the peer must not send it in this state.
bool LaneConnection::TakePacket(const WirePacket& packet, const WireLink::Arrival& arrival) {
  using Kind = WirePacket::Kind;
  if (packet.kind == Kind::kNcclOpen) return OpenNccl(arrival);
  if (arrival.size > 0) return false;
  if (packet.kind == Kind::kNcclStop) return OnNcclStop(packet);
  if (packet.kind == Kind::kHello) return OnLinkHello();
  if (is_lane_ && packet.kind == Kind::kEnded) return OnEnded(packet);
  if (packet.kind == Kind::kNcclPosted) return OnNcclPosted(packet);
  if (packet.kind == Kind::kProbed) return OnProbed(packet);
  if (packet.kind != Kind::kWelcome || !on_greeted_) return false;
  std::exchange(on_greeted_, nullptr)(absl::OkStatus());
  StartProbe(static_cast<WirePacket::Memory>(packet.code));
  if (peer_has_nccl_) StartNccl();
  return true;
}

bool LaneConnection::OnAnnounced(const WirePacket& packet, WireLink::Arrival& arrival) {
  if (is_lane_ || waiting_.size() >= kWaitingLanesMax) return false;
  const auto way = static_cast<WirePacket::Way>(packet.code);
  const bool by_nccl = way == WirePacket::Way::kNccl;
  if (by_nccl) {
    if (nccl_receiving_ == nullptr || packet.size == 0 || packet.id < nccl_next_) return false;
    nccl_next_ = packet.id + 1;
  }
  if (arrival.size != (by_nccl ? 0 : packet.size)) return false;
  if (way == WirePacket::Way::kLinkAfterNccl) return OnResentByLink(packet, arrival);
  if (!by_nccl && way != WirePacket::Way::kLink) return false;
  waiting_.push_back({.arrival = std::move(arrival), .packet = packet, .by_nccl = by_nccl});
  ReceiveWaiting();
  return true;
}

void LaneConnection::ReceiveWaiting() {
  while (!closing_ && !waiting_.empty() && receiving_ < kReceivingMax) {
    Incoming incoming = std::move(waiting_.front());
    waiting_.pop_front();
    Receive(std::move(incoming));
  }
}

void LaneConnection::Receive(Incoming incoming) {
  const auto target = TargetOf(incoming);
  if (!target.ok()) {
    link_->Drop(incoming.arrival);
    return SendEnded(incoming.packet.id,
                     Unavailable("refused by the peer: {}", Message(target.status())));
  }
  incoming.target = *target;
  if (incoming.by_nccl) return ReceiveByNccl(std::move(incoming));
  Fetch(std::move(incoming));
}

absl::StatusOr<WireTarget> LaneConnection::TargetOf(const Incoming& incoming) {
  const auto header = incoming.packet.TextBytes();
  const size_t size = incoming.packet.size;
  const bool by_nccl = incoming.by_nccl && !nccl_stopped_;
  if (by_nccl || (device_ready_ && incoming.arrival.rendezvous != 0)) {
    return shared_.receiver.OnAnnouncedAnywhere(header, size);
  }
  ASSIGN_OR_RETURN(std::byte* const target, shared_.receiver.OnAnnounced(header, size));
  return WireTarget{.data = target};
}

// Receives the payload by the link into its target.
void LaneConnection::Fetch(Incoming incoming) {
  if (incoming.arrival.rendezvous == 0) {
    if (!incoming.arrival.eager.empty()) {
      std::memcpy(incoming.target.data, incoming.arrival.eager.data(),
                  incoming.arrival.eager.size());
    }
    return OnReceived(incoming, absl::OkStatus());
  }
  ++receiving_;
  const WireLink::Arrival arrival = incoming.arrival;
  const WireTarget target = incoming.target;
  link_->Receive(arrival, target,
                 [this, incoming = std::move(incoming)](const absl::Status& status) {
                   --receiving_;
                   OnReceived(incoming, status);
                   ReceiveWaiting();
                 });
}

void LaneConnection::OnReceived(const Incoming& incoming, const absl::Status& status) {
  if (status.ok()) {
    shared_.receiver.OnLanded(incoming.packet.TextBytes(),
                              std::span(incoming.target.data, incoming.packet.size));
    return SendEnded(incoming.packet.id, absl::OkStatus());
  }
  shared_.receiver.OnLost(incoming.packet.TextBytes(), incoming.target.data);
  BreakUnless(status);
}

void LaneConnection::SendEnded(uint64_t id, const absl::Status& status) {
  WirePacket packet{.kind = WirePacket::Kind::kEnded, .id = id};
  packet.SetStatus(status);
  SendPacket(packet);
}

void LaneConnection::SendPacket(const WirePacket& packet) {
  if (closing_) return;
  // The link reads the header until the send has ended.
  auto held = std::make_shared<const WirePacket>(packet);
  link_->Send(Bytes(*held), {}, [this, held](const absl::Status& status) { BreakUnless(status); });
}

void LaneConnection::BreakUnless(const absl::Status& status) {
  if (!status.ok()) Close(Unavailable("the lane broke: {}", Message(status)));
}

void LaneConnection::Close(const absl::Status& status) {
  if (closing_.exchange(true)) return;
  close_status_ = status;
  waiting_.clear();  // The messages die with the link.
  CloseNccl();
  if (link_) link_->Cut();
  shared_.probe.Finish(this);
  handshake_.HangUp();
  if (on_greeted_) std::exchange(on_greeted_, nullptr)(status);
  // The remaining messages were sent and lack only the peer's answer.
  while (!outgoing_.empty()) {
    const uint64_t id = outgoing_.begin()->first;
    outgoing_.begin()->second.sends = 0;  // The link has released all buffers.
    EndIfOver(id);
  }
}

}  // namespace penstock
