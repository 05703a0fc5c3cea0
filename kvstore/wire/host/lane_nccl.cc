// The part of LaneConnection that handles NCCL.

#include <utility>

#include "base/log/log.h"
#include "kvstore/wire/host/lane_connection.h"

namespace penstock {

// Called on a lane as soon as it is open. The link carries everything until both ends are ready.
void LaneConnection::StartNccl() {
  nccl_sending_ = std::make_unique<NcclSending>(
      *shared_.nccl,
      NcclSending::Events{.on_id = [this](const std::string& id) { SendNcclOpen(id); },
                          .on_ready = [this] { nccl_ready_ = true; },
                          .on_failed = [this](const absl::Status& status) { StopNccl(status); },
                          .payload = [this](uint64_t id) { return NcclPayload(id); }});
}

void LaneConnection::SendNcclOpen(const std::string& id) {
  struct Held {
    WirePacket packet{.kind = WirePacket::Kind::kNcclOpen};
    std::string id;
  };
  const auto held = std::make_shared<Held>();
  held->id = id;
  link_->Send(std::as_bytes(std::span(&held->packet, 1)),
              {.bytes = std::as_bytes(std::span(held->id))},
              [this, held](const absl::Status& status) { BreakUnless(status); });
}

WirePayload LaneConnection::NcclPayload(uint64_t id) const {
  const auto found = outgoing_.find(id);
  if (found == outgoing_.end() || !found->second.by_nccl || found->second.answered) return {};
  return found->second.transfer.payload;
}

// The link of a lane that has NCCL sends from host memory only. A payload in GPU memory that it is
// to send, since NCCL has failed, is read first.
void LaneConnection::SendByLink(uint64_t id, WirePacket::Way way) {
  Outgoing& outgoing = outgoing_.at(id);
  outgoing.by_nccl = false;
  const WirePayload& payload = outgoing.transfer.payload;
  if (payload.bytes.empty()) return Announce(id, way, WirePayload());
  if (payload.memory == MemoryKind::kHost || device_ready_) return Announce(id, way, payload);
  nccl_sending_->Read(payload.bytes, [this, id, way](absl::StatusOr<std::vector<std::byte>> bytes) {
    OnReadForLink(id, way, std::move(bytes));
  });
}

void LaneConnection::OnReadForLink(uint64_t id, WirePacket::Way way,
                                   absl::StatusOr<std::vector<std::byte>> bytes) {
  const auto found = outgoing_.find(id);
  if (found == outgoing_.end()) return;  // NCCL had delivered it, or the lane is closed.
  if (bytes.ok()) {
    found->second.host_copy = *std::move(bytes);
    return Announce(id, way, {.bytes = found->second.host_copy});
  }
  const absl::Status status =
      Unavailable("the payload cannot be read from GPU memory: {}", Message(bytes.status()));
  // The peer still waits for what was announced.
  if (way == WirePacket::Way::kLinkAfterNccl) return BreakUnless(status);
  found->second.answered = true;
  found->second.answer = status;
  EndIfOver(id);
}

// Called on a peer's connection.
bool LaneConnection::OpenNccl(const WireLink::Arrival& arrival) {
  if (is_lane_ || shared_.nccl == nullptr || nccl_receiving_ || nccl_stopped_ ||
      arrival.eager.size() != sizeof(nccl::UniqueId)) {
    return false;
  }
  const std::string id(reinterpret_cast<const char*>(arrival.eager.data()), arrival.eager.size());
  nccl_receiving_ = std::make_unique<NcclReceiving>(
      *shared_.nccl, id,
      NcclReceiving::Events{.on_posted =
                                [this](const NcclPiece& piece) {
                                  SendPacket(WirePacket{.kind = WirePacket::Kind::kNcclPosted,
                                                        .id = piece.message,
                                                        .address = piece.offset,
                                                        .size = piece.size});
                                },
                            .on_received = [this](uint64_t message) { OnNcclReceived(message); },
                            .on_failed = [this](const absl::Status& status) { StopNccl(status); }});
  return true;
}

bool LaneConnection::OnNcclPosted(const WirePacket& packet) {
  if (!nccl_sending_) return false;
  // The peer posted before it knew that NCCL has stopped.
  if (nccl_stopped_) return true;
  return nccl_ready_ &&
         nccl_sending_->Send({.message = packet.id, .offset = packet.address, .size = packet.size})
             .ok();
}

void LaneConnection::ReceiveByNccl(Incoming incoming) {
  ++receiving_;
  const uint64_t id = incoming.packet.id;
  const Incoming& kept = by_nccl_[id] = std::move(incoming);
  if (nccl_stopped_) return;  // The link delivers it instead.
  nccl_receiving_->Receive(id, kept.target, kept.packet.size);
}

void LaneConnection::OnNcclReceived(uint64_t id) {
  const Incoming incoming = std::move(by_nccl_.extract(id).mapped());
  --receiving_;
  OnReceived(incoming, absl::OkStatus());
  ReceiveWaiting();
}

// Receives a message that was announced again because NCCL was to carry it. It may have arrived
// just before the peer stopped. The link does not reach GPU memory, where a copy may be under way
// besides: a message that was to land there gets another target, in host memory.
bool LaneConnection::OnResentByLink(const WirePacket& packet, WireLink::Arrival& arrival) {
  if (!nccl_stopped_) return false;
  for (Incoming& waiting : waiting_) {
    if (waiting.packet.id != packet.id || !waiting.by_nccl) continue;
    if (waiting.packet.size != packet.size) return false;
    waiting.by_nccl = false;
    waiting.arrival = std::move(arrival);
    return true;
  }
  const auto found = by_nccl_.find(packet.id);
  if (found == by_nccl_.end()) {
    link_->Drop(arrival);
    return true;
  }
  if (found->second.packet.size != packet.size) return false;
  Incoming incoming = std::move(found->second);
  by_nccl_.erase(found);
  --receiving_;
  incoming.arrival = std::move(arrival);
  incoming.by_nccl = false;
  if (incoming.target.memory == MemoryKind::kDevice) {
    LoseWhenQuiet(incoming);
    Receive(std::move(incoming));
  } else {
    Fetch(std::move(incoming));
  }
  ReceiveWaiting();
  return true;
}

// Reports a message as lost when the GPU no longer writes to its target. This connection may be
// gone by then.
void LaneConnection::LoseWhenQuiet(const Incoming& incoming) {
  nccl_receiving_->WhenQuiet(
      [&receiver = shared_.receiver, packet = incoming.packet, target = incoming.target.data] {
        receiver.OnLost(packet.TextBytes(), target);
      });
}

bool LaneConnection::OnNcclStop(const WirePacket& packet) {
  if (shared_.nccl == nullptr) return false;
  // The peer failed before it could open the communicator.
  if (!nccl_sending_ && !nccl_receiving_) {
    nccl_stopped_ = true;
    return !is_lane_;
  }
  StopNccl(Unavailable("the peer has stopped NCCL: {}", packet.Text()));
  if (nccl_sending_) nccl_sending_->PeerStopped();
  if (nccl_receiving_) nccl_receiving_->PeerStopped();
  return true;
}

// NCCL stops; the lane continues with its link.
void LaneConnection::StopNccl(const absl::Status& why) {
  if (std::exchange(nccl_stopped_, true)) return;
  nccl_ready_ = false;
  if (nccl_sending_) nccl_sending_->Stop(/*failed=*/true);
  if (nccl_receiving_) nccl_receiving_->Stop(/*failed=*/true);
  LogWarning("nccl_lane_failed", "a lane continues over {} without NCCL: {}", transport(),
             Message(why));
  WirePacket stop{.kind = WirePacket::Kind::kNcclStop};
  stop.SetText(Message(why));
  SendPacket(stop);
  for (auto& [id, outgoing] : outgoing_) {
    if (outgoing.by_nccl && !outgoing.answered) SendByLink(id, WirePacket::Way::kLinkAfterNccl);
  }
}

// Messages that NCCL has not delivered are lost. The peer stops when its handshake socket closes.
void LaneConnection::CloseNccl() {
  nccl_ready_ = false;
  nccl_stopped_ = true;
  for (NcclHalf* half : {static_cast<NcclHalf*>(nccl_sending_.get()),
                         static_cast<NcclHalf*>(nccl_receiving_.get())}) {
    if (half == nullptr) continue;
    half->Stop(/*failed=*/false);
    half->PeerStopped();
  }
  for (const auto& [id, incoming] : std::exchange(by_nccl_, {})) {
    if (incoming.target.memory == MemoryKind::kDevice) {
      LoseWhenQuiet(incoming);
    } else {
      shared_.receiver.OnLost(incoming.packet.TextBytes(), incoming.target.data);
    }
  }
}

}  // namespace penstock
