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

// The largest header and payload that Put takes, in bytes.
inline constexpr size_t kWireHeaderMax = 64;
inline constexpr size_t kWirePayloadMax = size_t{64} << 20;

// A payload, and whose memory it is in.
struct WirePayload {
  std::span<const std::byte> bytes;
  MemoryKind memory = MemoryKind::kHost;
};
// Where a payload shall land.
struct WireTarget {
  std::byte* data = nullptr;
  MemoryKind memory = MemoryKind::kHost;
};

// The receiving half of a Wire's user. Called on the wire's own thread: must not block.
class WireReceiver {
 public:
  virtual ~WireReceiver() = default;
  // A message of `payload_size` bytes has been announced. Returns where its payload shall land (at
  // least payload_size bytes, owned by the receiver until OnLanded or OnLost), or an error: the
  // message is then dropped and its sender's Put fails.
  virtual absl::StatusOr<std::byte*> OnAnnounced(std::span<const std::byte> header,
                                                 size_t payload_size) = 0;
  // The same where the wire can write this message into the memory of the wire's GPU as well.
  virtual absl::StatusOr<WireTarget> OnAnnouncedAnywhere(std::span<const std::byte> header,
                                                         size_t payload_size) {
    ASSIGN_OR_RETURN(std::byte* const target, OnAnnounced(header, payload_size));
    return WireTarget{.data = target};
  }
  // All bytes of the payload are where OnAnnounced said.
  virtual void OnLanded(std::span<const std::byte> header, std::span<std::byte> payload) = 0;
  // The message will never be complete, and nothing writes to `target` any more.
  virtual void OnLost(std::span<const std::byte> header, std::byte* target) = 0;
};

// A lane to one peer. Destroying it closes the lane: every Put that is under way ends, with
// CANCELLED, before the destructor returns. Not to be destroyed on the wire's thread (in `done` or
// by a receiver), nor while holding a lock that `done` takes; must not outlive its wire.
class WireLane {
 public:
  virtual ~WireLane() = default;
  // Sends header and payload as one message. Both must stay valid until `done`, which is called
  // once, on the wire's thread: OK when the receiver has all of it, else UNAVAILABLE (the receiver
  // refused it, or the lane broke) or CANCELLED (the lane was closed). Messages of one lane are
  // announced in the order of their Puts; they may land in any. When an error is returned at once,
  // `done` is never called: RESOURCE_EXHAUSTED when too much is under way, INVALID_ARGUMENT over
  // the sizes above, UNAVAILABLE when the lane is broken and must be opened again. Any thread.
  virtual absl::Status Put(std::span<const std::byte> header, std::span<const std::byte> payload,
                           std::function<void(absl::Status)> done) = 0;
  // Whether a payload may lie in the memory of the wire's GPU now, for PutFromDevice. What was true
  // may be so no longer: a Put from there then ends with UNAVAILABLE, and the lane stays. Any
  // thread.
  virtual bool TakesDeviceMemory() const { return false; }
  virtual absl::Status PutFromDevice(std::span<const std::byte> /*header*/,
                                     std::span<const std::byte> /*payload*/,
                                     std::function<void(absl::Status)> /*done*/) {
    return absl::InvalidArgumentError("this lane takes payloads in the host's memory only");
  }
  // What was really negotiated, e.g. "tcp" or "shared memory"; for people and metrics.
  virtual std::string transport() const = 0;
};

// A seam: moves bytes between processes. Control messages do not go here. Any thread.
class Wire {
 public:
  virtual ~Wire() = default;
  // What a peer gives to Connect; opaque bytes, at most 4 KiB.
  virtual std::string address() const = 0;
  // Opens a lane. UNAVAILABLE when the peer cannot be reached within `timeout_ms`.
  virtual absl::StatusOr<std::unique_ptr<WireLane>> Connect(const std::string& address,
                                                            int64_t timeout_ms) = 0;
  // Whether some of its lanes, or of those of its peers, may take a GPU's memory.
  virtual bool TakesDeviceMemory() const { return false; }
};

}  // namespace penstock
