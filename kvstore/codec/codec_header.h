#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "kvstore/codec/codec.h"

namespace penstock {

// The 64-byte header in front of every encoded run, little-endian.
struct KvCodecHeader {
  KvCodecSpec spec;
  bool stored = false;    // the payload is the raw bytes
  bool checksum = false;  // payload_crc is valid
  KvRun run;
  uint64_t calibration = 0;  // KvCalibration::id(); 0 for codecs that need none
  uint32_t payload_bytes = 0;
  uint32_t payload_crc = 0;
  bool operator==(const KvCodecHeader&) const = default;
};

inline constexpr size_t kKvCodecHeaderBytes = 64;
using KvCodecHeaderBytes = std::array<std::byte, kKvCodecHeaderBytes>;

KvCodecHeaderBytes EncodeKvCodecHeader(const KvCodecHeader& header);
// DATA_LOSS names the bad field. The geometry is bounded by kKvRunBytesMax, but not checked
// otherwise.
absl::StatusOr<KvCodecHeader> DecodeKvCodecHeader(std::span<const std::byte> bytes);

}  // namespace penstock
