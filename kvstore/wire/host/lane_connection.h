#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/wire/host/nccl_halves.h"
#include "kvstore/wire/net/device_probe.h"
#include "kvstore/wire/net/link.h"
#include "kvstore/wire/net/packet_socket.h"
#include "kvstore/wire/net/refusal.h"
#include "kvstore/wire/wire.h"
#include "kvstore/wire/wire_budget.h"

namespace penstock {

// One end of a lane between hosts: this process's to a peer, or a peer's to this process. The two
// ends first meet at the called one's WireDoor, where they identify themselves, over TLS in a
// cluster with certificates, and exchange the addresses of their links. The messages then go over
// the link. The connection of the handshake stays open: its end of file tells at once that the peer
// is gone. On the loop's thread.
//
// When both ends have NCCL, it carries the payloads of large messages, and all that are in GPU
// memory, once its communicator is open; each end uses its own kind of memory. Nothing waits for
// that; the link carries everything else, and everything if NCCL fails: pending messages are then
// announced again, from host memory and to host memory.
//
// When the link can access GPU memory, payloads may be sent from it or land in it after a
// DeviceProbe has arrived intact. Each end decides for its own memory.
class LaneConnection {
 public:
  struct Shared {
    WireLoop& loop;
    WireLinks& links;
    WireReceiver& receiver;
    WireBudget& budget;
    const std::string& instance;  // this wire's instance
    NcclContext* nccl;            // null: NCCL is not used
    DeviceProbe& probe;
    OnWireRefusal on_refused;
  };
  struct Transfer {
    WirePayload payload;
    std::function<void(absl::Status)> done;
  };

  LaneConnection(const Shared& shared, std::unique_ptr<Socket> handshake)
      : shared_(shared), handshake_(shared.loop, std::move(handshake)) {}
  ~LaneConnection();

  struct Hello {
    std::string instance;  // the instance that the lane expects
    SocketEndpoint peer;   // its door
    bool nccl = false;     // NCCL may be used: the peer has it, too
    std::function<void(absl::Status)> on_greeted;
  };
  // Exactly one of the two is called, once. Greet opens a lane: `on_greeted` is called once, with
  // OK when messages can be sent. Admit serves a peer that has said `hello`; `secret` is that of
  // the handshake's connection.
  void Greet(Hello hello);
  void Admit(const WirePacket& hello, const std::string& secret);

  void Put(const WirePacket& announcement, Transfer transfer);
  // Ends everything: pending Puts end with `status` before Close returns, and the receiver gets
  // OnLost for unfinished messages.
  void Close(const absl::Status& status);
  bool closing() const { return closing_; }  // Any thread.
  // True when the peer's first message has come over the link.
  bool established() const { return established_; }
  std::string transport() const { return link_ ? link_->Transport() : "no link"; }
  // Any thread. True when payloads may be in GPU memory; otherwise a Put from there ends with
  // UNAVAILABLE, unless NCCL was ready before.
  bool TakesDeviceMemory() const { return device_ready_ || nccl_ready_; }
  // Any thread. True when large messages go by NCCL.
  bool nccl_ready() const { return nccl_ready_; }

 private:
  struct Outgoing {
    WirePacket packet;
    Transfer transfer;
    std::vector<std::byte> host_copy = {};  // of a payload in GPU memory, for the link
    int sends = 0;                          // sends that the link has not ended
    bool by_nccl = false;
    bool answered = false;
    absl::Status answer;
  };
  struct Incoming {
    WireLink::Arrival arrival;
    WirePacket packet;
    bool by_nccl = false;
    WireTarget target{};
  };

  absl::Status OpenLink(const std::string& secret);
  absl::Status StartHandshake();
  void OnHandshakePacket(const WirePacket& packet);
  absl::Status HandleHandshake(const WirePacket& packet);
  absl::Status OnWelcome(const WirePacket& welcome);
  absl::Status OnPeerAddress(const WirePacket& piece);
  bool OnLinkHello();
  void SendLinkWelcome();
  void OnArrival(WireLink::Arrival arrival);
  bool TakePacket(const WirePacket& packet, const WireLink::Arrival& arrival);
  bool OnEnded(const WirePacket& packet);
  bool OnAnnounced(const WirePacket& packet, WireLink::Arrival& arrival);
  void Announce(uint64_t id, WirePacket::Way way, const WirePayload& payload);
  void OnSent(uint64_t id, const absl::Status& status);
  void EndIfOver(uint64_t id);
  void ReceiveWaiting();
  void Receive(Incoming incoming);
  absl::StatusOr<WireTarget> TargetOf(const Incoming& incoming);
  void Fetch(Incoming incoming);
  void OnReceived(const Incoming& incoming, const absl::Status& status);
  void SendPacket(const WirePacket& packet);
  void SendEnded(uint64_t id, const absl::Status& status);
  void BreakUnless(const absl::Status& status);

  // Defined in lane_device.cc.
  WirePacket::Memory MemoryHere() const;
  void StartProbe(WirePacket::Memory peer);
  bool OnProbe(const WireLink::Arrival& arrival);
  void OnProbeReceived(const absl::Status& status);
  void EndProbe(const absl::Status& whole);
  bool OnProbed(const WirePacket& packet);

  // Defined in lane_nccl.cc.
  void StartNccl();
  void SendNcclOpen(const std::string& id);
  WirePayload NcclPayload(uint64_t id) const;
  void SendByLink(uint64_t id, WirePacket::Way way);
  void OnReadForLink(uint64_t id, WirePacket::Way way,
                     absl::StatusOr<std::vector<std::byte>> bytes);
  bool OpenNccl(const WireLink::Arrival& arrival);
  bool OnNcclPosted(const WirePacket& packet);
  void ReceiveByNccl(Incoming incoming);
  void OnNcclReceived(uint64_t id);
  bool OnResentByLink(const WirePacket& packet, WireLink::Arrival& arrival);
  void StopNccl(const absl::Status& why);
  bool OnNcclStop(const WirePacket& packet);
  void LoseWhenQuiet(const Incoming& incoming);
  void CloseNccl();

  const Shared shared_;
  PacketSocket handshake_;
  std::unique_ptr<WireLink> link_;
  bool is_lane_ = false;
  std::optional<SocketEndpoint> peer_;  // of a lane
  AddressPieces peer_address_;
  bool established_ = false;
  bool link_hello_waits_ = false;  // for the link to be connected in this direction
  std::atomic<bool> closing_{false};
  absl::Status close_status_;
  std::map<uint64_t, Outgoing> outgoing_;
  uint64_t next_id_ = 0;
  std::deque<Incoming> waiting_;  // announced by the peer, not yet to the receiver
  size_t receiving_ = 0;
  std::function<void(absl::Status)> on_greeted_;

  bool probed_ = false;
  std::atomic<bool> device_ready_{false};

  bool peer_has_nccl_ = false;
  std::atomic<bool> nccl_ready_{false};
  bool nccl_stopped_ = false;
  std::unique_ptr<NcclSending> nccl_sending_;      // of a lane
  std::unique_ptr<NcclReceiving> nccl_receiving_;  // of a peer
  uint64_t nccl_next_ = 0;                         // ids of NCCL messages ascend
  std::map<uint64_t, Incoming> by_nccl_;           // messages that NCCL has not delivered yet
};

}  // namespace penstock
