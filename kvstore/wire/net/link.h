#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvstore/wire/loop.h"
#include "kvstore/wire/net/endpoint.h"
#include "kvstore/wire/wire.h"

namespace penstock {

// This room, kvstore/wire/net, has what all lanes between processes share: addresses, sockets, the
// packets of the handshake, and the interface below. It knows no transport and no message.

// Interface: messages between two processes that have shaken hands. One implementation for each
// transport: kvstore/wire/stream and kvstore/wire/ucx.
//
// On the loop's thread. Events are never delivered from within a call, except from Cut; callbacks
// may call everything here, but must not destroy the link.
class WireLink {
 public:
  static constexpr size_t kHeaderMax = 128;
  static constexpr size_t kEagerMax = 4096;

  // A message. With `rendezvous`, its `size` bytes wait at the sender until Receive or Drop;
  // otherwise they are in `eager`. A message from GPU memory always has `rendezvous`.
  struct Arrival {
    std::vector<std::byte> header;
    size_t size = 0;
    uintptr_t rendezvous = 0;  // the link's name for the message; 0: none
    std::vector<std::byte> eager;
  };
  struct Events {
    std::function<void(Arrival)> on_arrival;
    std::function<void(absl::Status)> on_failed;  // the caller must call Cut
  };
  using Done = std::function<void(absl::Status)>;

  virtual ~WireLink() = default;
  // The argument of the other end's Connect: opaque bytes. Empty when the other end must not call
  // it.
  virtual const std::string& address() const = 0;
  virtual absl::Status Connect(const std::string& peer) = 0;
  // True when messages can be sent.
  virtual bool connected() const = 0;
  // Header (at most kHeaderMax) and payload must stay valid until `done`. OK means that the link
  // has released them, not that the peer has received them.
  virtual void Send(std::span<const std::byte> header, const WirePayload& payload, Done done) = 0;
  // Receives the payload of a rendezvous. Nothing is written to `target` after `done`.
  virtual void Receive(const Arrival& arrival, const WireTarget& target, Done done) = 0;
  // Rejects a rendezvous.
  virtual void Drop(const Arrival& arrival) = 0;
  // Cuts the link at once, without the peer. Every pending Send and Receive ends with an error
  // before Cut returns; no event follows.
  virtual void Cut() = 0;
  // The transport, e.g. "tcp", for logs and metrics.
  virtual std::string Transport() const = 0;
};

// Interface: makes links of one transport. Outlives its links.
class WireLinks {
 public:
  struct Args {
    WireLoop& loop;
    WireLink::Events events;
    // Known to the two ends only; empty when they have not authenticated each other.
    std::string secret;
    // The peer's door, at the end that opens the lane; none at the end that is called.
    std::optional<SocketEndpoint> peer;
  };

  virtual ~WireLinks() = default;
  // Any thread.
  virtual bool TakesDeviceMemory() const = 0;
  // On the loop's thread.
  virtual absl::StatusOr<std::unique_ptr<WireLink>> NewLink(Args args) = 0;
};

}  // namespace penstock
