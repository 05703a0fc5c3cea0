#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "kvstore/wire.h"
#include "kvstore/wire_budget.h"
#include "kvstore/wire_packets.h"
#include "kvstore/wire_ucx_link.h"

namespace penstock {

// One end of a lane over UCX: ours to a peer, or a peer's to us. The two ends first meet at the
// "door", a TCP connection of our own on which they prove who they are and exchange UCX addresses:
// UCX's own listener aborts the process when a stranger sends it bytes. The door stays open, for
// its end tells at once that the peer is gone. Lives on the loop's thread.
class UcxConnection {
 public:
  struct Shared {
    WireLoop& loop;
    UcxContext& context;
    WireReceiver& receiver;
    WireBudget& budget;
    const std::string& instance;  // ours
  };
  struct Transfer {
    std::span<const std::byte> payload;
    std::function<void(absl::Status)> done;
  };

  UcxConnection(const Shared& shared, int door_fd)  // Takes `door_fd`.
      : shared_(shared), door_(shared.loop, door_fd) {}
  ~UcxConnection();

  // One of the two, once. For a lane: looks for `instance`; `on_greeted` is called once, with OK
  // when messages can go. For a peer: waits to be greeted.
  void Greet(const std::string& instance, std::function<void(absl::Status)> on_greeted);
  void Admit();

  void Put(const WirePacket& announcement, Transfer transfer);
  // No more of anything. Puts that are under way end with `status` before it returns, and the
  // receiver is told of what is lost.
  void Close(const absl::Status& status);
  bool closing() const { return closing_; }  // Any thread.
  std::string transport() const { return link_ ? link_->Transport() : "ucx"; }

 private:
  struct Outgoing {
    WirePacket packet;  // UCX reads it until the send is over
    Transfer transfer;
    bool sent = false;
    bool answered = false;
    absl::Status answer;
  };
  struct Incoming {
    UcxLink::Arrival arrival;
    WirePacket packet;
    std::byte* target = nullptr;
  };

  absl::Status OpenLink();
  absl::Status StartDoor();
  void OnDoorPacket(const WirePacket& packet);
  absl::Status AtDoor(const WirePacket& packet);
  absl::Status MeetPeer();
  void OnArrival(UcxLink::Arrival arrival);
  void OnEnded(const WirePacket& packet);
  void OnSent(uint64_t id, const absl::Status& status);
  void EndIfOver(uint64_t id);
  void ReceiveWaiting();
  void Receive(Incoming incoming);
  void OnReceived(const Incoming& incoming, const absl::Status& status);
  void SendPacket(const WirePacket& packet);
  void SendEnded(uint64_t id, const absl::Status& status);

  const Shared shared_;
  PacketSocket door_;
  std::unique_ptr<UcxLink> link_;
  bool is_lane_ = false;
  bool welcomed_ = false;  // hello or welcome has come through the door
  AddressPieces peer_address_;
  std::atomic<bool> closing_{false};
  absl::Status close_status_;
  std::map<uint64_t, Outgoing> outgoing_;
  uint64_t next_id_ = 0;
  std::deque<Incoming> waiting_;  // announced by the peer, not yet to our receiver
  size_t receiving_ = 0;
  std::function<void(absl::Status)> on_greeted_;
};

}  // namespace penstock
