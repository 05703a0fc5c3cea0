#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "kvstore/codec/codec.h"

namespace penstock {

// What stands in front of every encoded run: 64 bytes, little-endian.
struct KvCodecHeader {
  KvCodecSpec spec;
  bool stored = false;    // the payload is the raw bytes
  bool checksum = false;  // payload_crc counts
  KvRun run;
  uint64_t calibration = 0;  // its id, 0 where the codec needs none
  uint32_t payload_bytes = 0;
  uint32_t payload_crc = 0;
  bool operator==(const KvCodecHeader&) const = default;
};

inline constexpr size_t kKvCodecHeaderBytes = 64;
using KvCodecHeaderBytes = std::array<std::byte, kKvCodecHeaderBytes>;

KvCodecHeaderBytes EncodeKvCodecHeader(const KvCodecHeader& header);
// DATA_LOSS names the field. Geometry is bounded by kKvRunBytesMax, but not otherwise checked.
absl::StatusOr<KvCodecHeader> DecodeKvCodecHeader(std::span<const std::byte> bytes);

}  // namespace penstock
