#pragma once

#include <span>

#include "kvstore/codec/codec.h"
#include "kvstore/codec/codec_header.h"

namespace penstock {

// The KV codecs for slabs in a GPU's memory, as all spans here are, aligned to 16 bytes: the same
// bytes as codec.h. Calls return when all is done. A seam, so that whoever moves slabs needs no
// CUDA (device_slab_coder.h). One thread at a time.
class SlabCoder {
 public:
  virtual ~SlabCoder() = default;
  // Other slabs are the host's matter. No codec of these needs a calibration.
  virtual bool Takes(const KvCodecSpec& spec, size_t raw_bytes) const = 0;

  // Encodes a slab in its place where that makes it smaller: returns the bytes used, or what it
  // has.
  virtual absl::StatusOr<size_t> Encode(const KvCodecSpec& spec, const KvRun& run,
                                        std::span<std::byte> slab) = 0;
  virtual absl::StatusOr<KvCodecHeader> ReadHeader(std::span<const std::byte> encoded) = 0;
  virtual absl::Status Decode(const KvCodecSpec& spec, const KvRun& run,
                              std::span<const std::byte> encoded, std::span<std::byte> raw) = 0;
  virtual absl::StatusOr<uint32_t> Checksum(std::span<const std::byte> bytes) = 0;
};

}  // namespace penstock
