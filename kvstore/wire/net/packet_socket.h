#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "base/net/socket.h"
#include "kvstore/wire/loop.h"
#include "kvstore/wire/net/wire_packet.h"

namespace penstock {

// One end of a connected socket that carries packets: a unix socket of type SOCK_SEQPACKET, or a
// byte stream, plain or over TLS. On the loop's thread; must not be destroyed in its own callbacks.
class PacketSocket {
 public:
  struct Callbacks {
    std::function<void(const WirePacket&)> on_packet;
    // Called once: the peer closed the connection or sent an invalid packet.
    std::function<void(absl::Status)> on_closed;
  };

  PacketSocket(WireLoop& loop, std::unique_ptr<Socket> socket);
  ~PacketSocket();
  PacketSocket(const PacketSocket&) = delete;
  PacketSocket& operator=(const PacketSocket&) = delete;

  absl::Status Start(Callbacks callbacks);
  // Queues the packet when the socket is full; callers bound the number of packets.
  void Send(const WirePacket& packet);
  // Closes this end at once; unread packets are dropped.
  void HangUp();
  // True when the peer has closed its end, even if its last packets were not read yet.
  bool HungUp() const;
  // Socket::ExportSecret.
  std::string ExportSecret(const std::string& label) const { return socket_->ExportSecret(label); }

 private:
  void OnReady();
  void Receive();
  void Flush();
  void WatchAsNeeded();
  void Fail(absl::Status status);

  WireLoop& loop_;
  const std::unique_ptr<Socket> socket_;
  bool stream_ = false;
  Callbacks callbacks_;
  std::deque<WirePacket> outgoing_;
  size_t outgoing_sent_ = 0;  // bytes sent of the first packet; only streams split packets
  std::array<char, 128 + 1> incoming_;  // one extra byte reveals a packet that is too long
  size_t incoming_size_ = 0;
  bool writing_ = false;  // EPOLLOUT is being watched
  bool failed_ = false;
};

}  // namespace penstock
