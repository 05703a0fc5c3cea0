#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "kvstore/wire/net/link.h"

namespace penstock {

// This room, kvstore/wire/stream, has links over one TCP connection each, whose frames are sealed
// with AES-128-GCM when the two processes have authenticated each other, and the door at which
// they meet. It knows nothing of slabs, and decides nothing about who is called.
//
// A frame is a header of 32 bytes, a body, and on a sealed link a tag of 16 bytes that covers both.
// docs/adr/0030-sealed-wire.md explains the protocol.

// The header of a frame, little-endian.
struct StreamFrame {
  enum class Kind : uint32_t {
    // Message `id` of `value` bytes. The body is the user's header of `header_bytes`, and the
    // message too if it has at most WireLink::kEagerMax bytes.
    kMessage = 1,
    kWanted = 2,   // the receiver has a target for message `id`: send its parts
    kRefused = 3,  // the receiver does not want message `id`
    kPart = 4,     // the bytes of message `id` from offset `value` on
  };
  static constexpr uint32_t kMagic = 0x32465350;  // "PSF2"

  uint32_t magic = kMagic;
  Kind kind = Kind::kMessage;
  uint32_t header_bytes = 0;
  uint32_t body_bytes = 0;
  uint64_t id = 0;  // ids of messages ascend from 1, in each direction
  uint64_t value = 0;
};
static_assert(sizeof(StreamFrame) == 32);

inline constexpr size_t kStreamFrameBytes = sizeof(StreamFrame);
// All parts of a message but the last have this size.
inline constexpr size_t kStreamPartBytes = size_t{256} << 10;

// Checks magic, kind and sizes; DATA_LOSS names the field. `bytes` has kStreamFrameBytes.
absl::StatusOr<StreamFrame> ParseStreamFrame(std::span<const std::byte> bytes);
std::span<const std::byte> BytesOf(const StreamFrame& frame);

// The first 64 bytes of a link's connection, from the end that opened it.
struct StreamHello {
  static constexpr uint32_t kMagic = 0x32445350;  // "PSD2"

  uint32_t magic = kMagic;
  uint32_t version = 2;
  std::array<std::byte, 16> link{};   // the address of the peer's link
  std::array<std::byte, 32> proof{};  // StreamProof of the link's secret
  std::array<std::byte, 8> reserved{};
};
static_assert(sizeof(StreamHello) == 64);

}  // namespace penstock
