#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "kernels/device_slabs.h"

namespace penstock {

// Wires of different versions do not understand each other.
inline constexpr uint64_t kWireVersion = 2;

// The limits of Put for header and payload, in bytes.
inline constexpr size_t kWireHeaderMax = 64;
inline constexpr size_t kWirePayloadMax = size_t{64} << 20;

// A payload and the kind of memory that holds it.
struct WirePayload {
  std::span<const std::byte> bytes;
  MemoryKind memory = MemoryKind::kHost;
};
// The destination of a payload.
struct WireTarget {
  std::byte* data = nullptr;
  MemoryKind memory = MemoryKind::kHost;
};

// The receiving side of a wire, implemented by the wire's user. Called on the wire's own thread, so
// methods must not block. Must outlive the wire.
class WireReceiver {
 public:
  virtual ~WireReceiver() = default;
  // A message with `payload_size` payload bytes was announced. Returns the destination of at least
  // payload_size bytes, which the receiver keeps valid until OnLanded or OnLost. On an error the
  // message is dropped and the sender's Put fails.
  virtual absl::StatusOr<std::byte*> OnAnnounced(std::span<const std::byte> header,
                                                 size_t payload_size) = 0;
  // As OnAnnounced, for messages that the wire can also write directly into GPU memory.
  virtual absl::StatusOr<WireTarget> OnAnnouncedAnywhere(std::span<const std::byte> header,
                                                         size_t payload_size) {
    ASSIGN_OR_RETURN(std::byte* const target, OnAnnounced(header, payload_size));
    return WireTarget{.data = target};
  }
  // All bytes of the payload are at the announced destination.
  virtual void OnLanded(std::span<const std::byte> header, std::span<std::byte> payload) = 0;
  // The message will never be complete at `target`, to which the wire no longer writes. A lane may
  // have announced it again meanwhile, to land elsewhere.
  virtual void OnLost(std::span<const std::byte> header, std::byte* target) = 0;
};

// A lane to one peer. The destructor closes the lane: every pending Put ends with CANCELLED before
// it returns. Do not destroy a lane on the wire's thread (in `done` or in a receiver), nor while
// holding a lock that `done` takes. A lane must not outlive its wire.
class WireLane {
 public:
  virtual ~WireLane() = default;
  // Sends header and payload as one message. Both must stay valid until `done`, which is called
  // once, on the wire's thread, with OK when the receiver has all bytes, UNAVAILABLE when the
  // receiver refused or the lane broke, or CANCELLED when the lane was closed. Messages of one lane
  // are announced in the order of Put, but may land in any order. If Put itself returns an error,
  // `done` is never called: RESOURCE_EXHAUSTED when too much is pending, INVALID_ARGUMENT beyond
  // the size limits, UNAVAILABLE when the lane is broken and must be reopened. Any thread.
  virtual absl::Status Put(std::span<const std::byte> header, std::span<const std::byte> payload,
                           std::function<void(absl::Status)> done) = 0;
  // True when PutFromDevice may be called now, with payloads in the GPU's memory. The answer can
  // become stale: PutFromDevice then ends with UNAVAILABLE, and the lane stays open. The payload's
  // allocation outlives the wire, because a copy of a Put that was given up may still read it, in
  // vain. Any thread.
  virtual bool TakesDeviceMemory() const { return false; }
  virtual absl::Status PutFromDevice(std::span<const std::byte> /*header*/,
                                     std::span<const std::byte> /*payload*/,
                                     std::function<void(absl::Status)> /*done*/) {
    return absl::InvalidArgumentError(
        "this lane sends from host memory only; copy the payload there");
  }
  // The negotiated transport, e.g. "tcp" or "shared memory", for logs and metrics.
  virtual std::string transport() const = 0;
};

// This room moves bytes between processes: the Wire interface, the slab header, the send budget and
// an in-process wire. It knows nothing of handoffs, codecs or caches, and control messages do not
// travel here.

// Wire is an interface with one implementation for each transport (loopback, UCX). Any thread.
class Wire {
 public:
  virtual ~Wire() = default;
  // The address that a peer passes to Connect: opaque, at most 4 KiB.
  virtual std::string address() const = 0;
  // Opens a lane. UNAVAILABLE when the peer is not reachable within `timeout_ms`.
  virtual absl::StatusOr<std::unique_ptr<WireLane>> Connect(const std::string& address,
                                                            int64_t timeout_ms) = 0;
  // True when some of its lanes, or some of its peers' lanes, may use GPU memory.
  virtual bool TakesDeviceMemory() const { return false; }
};

}  // namespace penstock
