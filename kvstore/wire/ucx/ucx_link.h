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

// The part of UCX that a wire needs: active messages between two processes that exchanged their
// addresses by other means. Only ucx.cc includes UCX's headers.
//
// Each link has its own UCX worker with a single endpoint. It can therefore be cut at any time, in
// any state: destroying the worker releases the last reference to every buffer. On the loop's
// thread. Events that UCX reports during progress are delivered after UCX has returned; callbacks
// may call everything here, but must not destroy the link.
class UcxLink {
 public:
  static constexpr size_t kHeaderMax = 128;
  static constexpr size_t kEagerMax = 4096;

  // An active message. With `rendezvous`, its `size` bytes wait at the sender until Receive or
  // Drop; otherwise they are in `eager`. A message from GPU memory always has `rendezvous`.
  struct Arrival {
    std::vector<std::byte> header;
    size_t size = 0;
    void* rendezvous = nullptr;
    std::vector<std::byte> eager;
  };
  struct Events {
    std::function<void(Arrival)> on_arrival;
    std::function<void(absl::Status)> on_failed;  // the caller must call Cut
  };
  using Done = std::function<void(absl::Status)>;

  virtual ~UcxLink() = default;
  // The argument of the other end's Connect: opaque bytes.
  virtual const std::string& address() const = 0;
  virtual absl::Status Connect(const std::string& peer) = 0;
  // Header (at most kHeaderMax) and payload must stay valid until `done`. OK means that UCX has
  // released them, not that the peer has received them.
  virtual void Send(std::span<const std::byte> header, const WirePayload& payload, Done done) = 0;
  // Receives the payload of a rendezvous. Nothing is written to `target` after `done`.
  virtual void Receive(const Arrival& arrival, const WireTarget& target, Done done) = 0;
  // Rejects a rendezvous.
  virtual void Drop(const Arrival& arrival) = 0;
  // Cuts the link at once, without the peer. Every pending Send and Receive ends with an error
  // before Cut returns; no event follows.
  virtual void Cut() = 0;
  // The transport, e.g. "tcp".
  virtual std::string Transport() const = 0;
};

// UCX, configured for links between hosts. Outlives its links.
class UcxContext {
 public:
  // Uses TCP on the network interface `device` (empty: all), unless the environment says otherwise
  // (UCX_TLS, UCX_NET_DEVICES). `gpu` is the GPU whose memory may be sent and received if this UCX
  // supports it; null: host memory only.
  static absl::StatusOr<std::unique_ptr<UcxContext>> Open(
      const std::string& device, std::shared_ptr<const TransferDevice> gpu);
  virtual ~UcxContext() = default;
  virtual bool TakesDeviceMemory() const = 0;
  // On the loop's thread.
  virtual absl::StatusOr<std::unique_ptr<UcxLink>> NewLink(WireLoop& loop,
                                                           UcxLink::Events events) = 0;
};

}  // namespace penstock
