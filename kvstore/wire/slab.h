#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "kvstore/names/handoff_key.h"

namespace penstock {

enum class SlabCodec : uint8_t {
  kRaw = 0,
  kEncoded = 1,  // encoded by EncodeKv; the payload's own header names the codec
};

// The 64-byte header in front of every slab, little-endian; EncodeSlabHeader defines the layout.
// The payload holds, for each block in [first_block, first_block + blocks), the bytes of layers
// [first_layer, first_layer + layers), encoded by `codec`.
struct SlabHeader {
  HandoffKey key;
  SlabCodec codec = SlabCodec::kRaw;
  uint32_t sequence = 0;  // 0, 1, 2, ... within the handoff
  uint16_t first_layer = 0;
  uint16_t layers = 0;
  uint32_t first_block = 0;  // index in the sequence's block table, not a page number
  uint32_t blocks = 0;
  uint32_t raw_bytes = 0;      // before encoding
  uint32_t payload_bytes = 0;  // as sent
  uint32_t payload_crc = 0;    // CRC32C of the payload
  bool operator==(const SlabHeader&) const = default;
};

inline constexpr size_t kSlabHeaderBytes = 64;
using SlabHeaderBytes = std::array<std::byte, kSlabHeaderBytes>;

SlabHeaderBytes EncodeSlabHeader(const SlabHeader& header);
// DATA_LOSS names the bad field: magic, version, reserved, codec, lengths or header checksum.
absl::StatusOr<SlabHeader> DecodeSlabHeader(std::span<const std::byte> bytes);

}  // namespace penstock
