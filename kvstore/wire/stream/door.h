#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/net/socket.h"
#include "base/tls/tls_socket.h"
#include "kvstore/wire/loop.h"
#include "kvstore/wire/net/refusal.h"
#include "kvstore/wire/net/wire_packet.h"
#include "kvstore/wire/stream/frame.h"

namespace penstock {

// The only port of a wire. A connection is a guest until it has said its purpose: a packet
// kHello, under TLS where the cluster has certificates, or a link's StreamHello. Guests are
// few, have little time, and cannot keep others out: when there are too many, the oldest of the
// network with the most is closed. On the loop's thread.
class WireDoor {
 public:
  // A peer that has said hello.
  struct Caller {
    std::unique_ptr<Socket> socket;
    WirePacket hello;
    std::string secret;   // Socket::ExportSecret; empty over a plain connection
    std::string network;  // PeerNetwork
  };
  struct Events {
    std::function<void(Caller)> on_hello;
    // Takes ownership of the descriptor.
    std::function<void(int fd, const StreamHello& hello)> on_stream;
    OnWireRefusal on_refused;
  };
  struct Limits {
    size_t guests = 256;
    size_t guests_of_network = 32;
    std::chrono::milliseconds time{5000};  // from accept to the end of the greeting, in all
    // Handshakes that a network may begin: `burst` at once, and `per_s` in each second.
    double handshakes_per_s = 32;
    double handshakes_burst = 64;
  };
  struct Args {
    WireLoop& loop;
    int fd = -1;                // listens; the door takes ownership
    TlsSockets* tls = nullptr;  // null: hello comes in plain
    Events events;
    Limits limits = {};
  };

  static absl::StatusOr<std::unique_ptr<WireDoor>> Open(Args args);
  virtual ~WireDoor() = default;
};

}  // namespace penstock
