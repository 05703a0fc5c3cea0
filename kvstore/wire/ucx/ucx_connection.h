#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "kvstore/wire/ucx/device_probe.h"
#include "kvstore/wire/ucx/nccl.h"
#include "kvstore/wire/ucx/packets.h"
#include "kvstore/wire/ucx/ucx_link.h"
#include "kvstore/wire/wire.h"
#include "kvstore/wire/wire_budget.h"

namespace penstock {

// One end of a lane over UCX: ours to a peer, or a peer's to us. The two ends first meet at the
// "door", a TCP connection of our own on which they prove who they are and exchange UCX addresses:
// UCX's own listener aborts the process when a stranger sends it bytes. The door stays open, for
// its end tells at once that the peer is gone. Lives on the loop's thread.
//
// Where both ends have NCCL, it carries the payload of large messages once its communicator is
// there, which nobody waits for; everything else stays with UCX, and where NCCL fails, all of it
// does: what was on its way is announced again.
//
// Where UCX reaches a GPU's memory, payloads may go from there, or land there, once a DeviceProbe
// has come whole; each end sees to its own.
class UcxConnection {
 public:
  struct Shared {
    WireLoop& loop;
    UcxContext& context;
    WireReceiver& receiver;
    WireBudget& budget;
    const std::string& instance;  // ours
    NcclContext* nccl;            // null: none here
    DeviceProbe& probe;
  };
  struct Transfer {
    WirePayload payload;
    std::function<void(absl::Status)> done;
  };

  UcxConnection(const Shared& shared, int door_fd)  // Takes `door_fd`.
      : shared_(shared), door_(shared.loop, door_fd) {}
  ~UcxConnection();

  struct Hello {
    std::string instance;  // whom it looks for
    bool nccl = false;     // which the peer has, too
    std::function<void(absl::Status)> on_greeted;
  };
  // One of the two, once. For a lane: `on_greeted` is called once, with OK when messages can go.
  // For a peer: waits to be greeted.
  void Greet(Hello hello);
  void Admit();

  void Put(const WirePacket& announcement, Transfer transfer);
  // No more of anything. Puts that are under way end with `status` before it returns, and the
  // receiver is told of what is lost.
  void Close(const absl::Status& status);
  bool closing() const { return closing_; }  // Any thread.
  std::string transport() const { return link_ ? link_->Transport() : "ucx"; }
  // Any thread: payloads may lie in the GPU's memory. A Put of what may not ends with UNAVAILABLE.
  bool TakesDeviceMemory() const { return device_ready_; }
  bool nccl_ready() const { return nccl_ready_; }  // Any thread: large messages go by NCCL.

 private:
  struct Outgoing {
    WirePacket packet;  // UCX reads it until the send is over
    Transfer transfer;
    int sends = 0;  // that UCX has not ended
    bool by_nccl = false;
    bool answered = false;
    absl::Status answer;
  };
  struct Incoming {
    UcxLink::Arrival arrival;
    WirePacket packet;
    bool by_nccl = false;
    WireTarget target{};
  };

  absl::Status OpenLink();
  absl::Status StartDoor();
  void OnDoorPacket(const WirePacket& packet);
  absl::Status AtDoor(const WirePacket& packet);
  absl::Status MeetPeer();
  void OnArrival(UcxLink::Arrival arrival);
  bool TakePacket(const WirePacket& packet, const UcxLink::Arrival& arrival);
  bool OnEnded(const WirePacket& packet);
  bool OnAnnounced(const WirePacket& packet, UcxLink::Arrival& arrival);
  void OnSent(uint64_t id, const absl::Status& status);
  void EndIfOver(uint64_t id);
  void ReceiveWaiting();
  void Receive(Incoming incoming);
  absl::StatusOr<WireTarget> Announce(const Incoming& incoming);
  void Fetch(Incoming incoming);
  void OnReceived(const Incoming& incoming, const absl::Status& status);
  void SendPacket(const WirePacket& packet);
  void SendEnded(uint64_t id, const absl::Status& status);
  void BreakUnless(const absl::Status& status);

  // wire_ucx_device.cc
  WirePacket::Memory MemoryHere() const;
  void StartProbe(WirePacket::Memory peer);
  bool OnProbe(const UcxLink::Arrival& arrival);
  void OnProbeReceived(const absl::Status& status);
  void EndProbe(const absl::Status& whole);
  bool OnProbed(const WirePacket& packet);

  // wire_ucx_nccl.cc
  void StartNccl();
  void SendNcclOpen(const std::string& id);
  std::span<const std::byte> PayloadByNccl(uint64_t id) const;
  bool OpenNccl(const UcxLink::Arrival& arrival);
  bool OnNcclPosted(const WirePacket& packet);
  void ReceiveByNccl(Incoming incoming);
  void OnNcclReceived(uint64_t id);
  bool OnInstead(const WirePacket& packet, UcxLink::Arrival& arrival);
  void StopNccl(const absl::Status& why);
  bool OnNcclStop(const WirePacket& packet);
  void SendInstead(uint64_t id, Outgoing& outgoing);
  void CloseNccl();

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

  bool probed_ = false;
  std::atomic<bool> device_ready_{false};

  bool peer_has_nccl_ = false;
  std::atomic<bool> nccl_ready_{false};
  bool nccl_stopped_ = false;
  std::unique_ptr<NcclSending> nccl_sending_;      // of a lane
  std::unique_ptr<NcclReceiving> nccl_receiving_;  // of a peer
  uint64_t nccl_next_ = 0;                         // ids of its messages ascend
  std::map<uint64_t, Incoming> by_nccl_;           // what it has not brought yet
};

}  // namespace penstock
