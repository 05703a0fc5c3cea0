#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvstore/wire_endpoint.h"
#include "kvstore/wire_loop.h"

namespace penstock {

// The part of UCX that a wire needs, in our own terms: endpoints that carry active messages with
// peer failure handling. UCX itself is named in wire_ucx.cc only.
//
// Constructed, used and destroyed on the loop's thread. What UCX reports while it progresses is
// kept, and told after it has returned: callbacks may call anything here.
class UcxWorker {
 public:
  using Endpoint = uint64_t;  // Never used twice.
  static constexpr size_t kEagerMax = 4096;

  // An active message. One with `rendezvous` has `size` bytes that wait at the sender until Receive
  // or Drop; any other has them in `eager`.
  struct Arrival {
    Endpoint from = 0;
    std::vector<std::byte> header;
    size_t size = 0;
    void* rendezvous = nullptr;
    std::vector<std::byte> eager;
  };
  struct Events {
    std::function<void(Endpoint)> on_accepted;
    std::function<void(Endpoint, absl::Status)> on_failed;  // Then Close it.
    std::function<void(Arrival)> on_arrival;
  };
  struct Args {
    WireLoop& loop;
    SocketEndpoint listen;
    std::string device;  // restricts UCX to this network interface; empty: all
    bool tcp_only = false;
    Events events;
  };
  using Done = std::function<void(absl::Status)>;

  static absl::StatusOr<std::unique_ptr<UcxWorker>> Open(const Args& args);
  virtual ~UcxWorker() = default;  // CHECKs that every endpoint is closed.

  virtual int port() const = 0;
  virtual absl::StatusOr<Endpoint> Connect(const SocketEndpoint& peer) = 0;
  // Header (at most 128 bytes) and payload stay valid until `done`, which says that UCX has let go
  // of them, not that the peer has them.
  virtual void Send(Endpoint to, std::span<const std::byte> header,
                    std::span<const std::byte> payload, Done done) = 0;
  // Fetches the payload of a rendezvous; nothing is written to `target` after `done`.
  virtual void Receive(const Arrival& arrival, std::byte* target, Done done) = 0;
  // Gives up a rendezvous. Must come before its endpoint is closed.
  virtual void Drop(const Arrival& arrival) = 0;
  // At once, without waiting for the peer. Every Send and Receive of it that has not ended ends
  // with an error, soon but not in a known order with `done`.
  virtual void Close(Endpoint endpoint, std::function<void()> done) = 0;
  // What carries it, e.g. "tcp".
  virtual std::string Transport(Endpoint endpoint) const = 0;
};

}  // namespace penstock
