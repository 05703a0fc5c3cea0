#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace penstock {

// The largest header and payload that Put takes, in bytes.
inline constexpr size_t kWireHeaderMax = 64;
inline constexpr size_t kWirePayloadMax = size_t{64} << 20;

// The receiving half of a Wire's user. Called on the wire's own thread: must not block.
class WireReceiver {
 public:
  virtual ~WireReceiver() = default;
  // A message of `payload_size` bytes has been announced. Returns where its payload shall land (at
  // least payload_size bytes, owned by the receiver until OnLanded or OnLost), or an error: the
  // message is then dropped and its sender's Put fails.
  virtual absl::StatusOr<std::byte*> OnAnnounced(std::span<const std::byte> header,
                                                 size_t payload_size) = 0;
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
};

}  // namespace penstock
