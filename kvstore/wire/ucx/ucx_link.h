#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/transfer_device.h"
#include "kvstore/wire/loop.h"
#include "kvstore/wire/wire.h"

namespace penstock {

// The part of UCX that a wire needs, in our own terms: active messages between two processes that
// have exchanged addresses by other means. UCX itself is named in wire_ucx.cc only.
//
// A link has a UCX worker of its own with a single endpoint. So it can be cut off at any moment,
// whatever state UCX has it in: destroying the worker frees the last reference to any buffer.
// On the loop's thread. What UCX reports while it progresses is kept and told after it has
// returned: callbacks may call anything here, but must not destroy the link.
class UcxLink {
 public:
  static constexpr size_t kHeaderMax = 128;
  static constexpr size_t kEagerMax = 4096;

  // An active message. One with `rendezvous` has `size` bytes that wait at the sender until Receive
  // or Drop; any other has them in `eager`. What comes from a GPU's memory is always one.
  struct Arrival {
    std::vector<std::byte> header;
    size_t size = 0;
    void* rendezvous = nullptr;
    std::vector<std::byte> eager;
  };
  struct Events {
    std::function<void(Arrival)> on_arrival;
    std::function<void(absl::Status)> on_failed;  // Then Cut it.
  };
  using Done = std::function<void(absl::Status)>;

  virtual ~UcxLink() = default;
  // What the other end gives to Connect; bytes.
  virtual const std::string& address() const = 0;
  virtual absl::Status Connect(const std::string& peer) = 0;
  // Header (at most kHeaderMax) and payload stay valid until `done`, which says that UCX has let go
  // of them, not that the peer has them.
  virtual void Send(std::span<const std::byte> header, const WirePayload& payload, Done done) = 0;
  // Fetches the payload of a rendezvous; nothing is written to `target` after `done`.
  virtual void Receive(const Arrival& arrival, const WireTarget& target, Done done) = 0;
  // Gives up a rendezvous.
  virtual void Drop(const Arrival& arrival) = 0;
  // At once, without asking the peer. Every Send and Receive that has not ended ends with an error
  // before it returns; there are no events after it.
  virtual void Cut() = 0;
  // What carries it, e.g. "tcp".
  virtual std::string Transport() const = 0;
};

// UCX itself, set up for links between hosts. Outlives its links.
class UcxContext {
 public:
  // Over TCP, on the network interface `device` (empty: all), unless the environment says otherwise
  // (UCX_TLS, UCX_NET_DEVICES). `gpu`: whose memory may be sent from and received into where this
  // UCX can; null: the host's alone.
  static absl::StatusOr<std::unique_ptr<UcxContext>> Open(
      const std::string& device, std::shared_ptr<const TransferDevice> gpu);
  virtual ~UcxContext() = default;
  virtual bool TakesDeviceMemory() const = 0;
  // On the loop's thread.
  virtual absl::StatusOr<std::unique_ptr<UcxLink>> NewLink(WireLoop& loop,
                                                           UcxLink::Events events) = 0;
};

}  // namespace penstock
