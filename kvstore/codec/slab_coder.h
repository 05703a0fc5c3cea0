#pragma once

#include <span>

#include "kvstore/codec/codec.h"
#include "kvstore/codec/codec_header.h"

namespace penstock {

// The KV codecs for slabs in GPU memory; all spans are device memory aligned to 16 bytes, and the
// bytes equal those of codec.h. Calls return when the work has ended. An interface, so that its
// callers do not depend on CUDA (see device_slab_coder.h). One thread at a time.
class SlabCoder {
 public:
  virtual ~SlabCoder() = default;
  // False when the slab must be encoded in host memory: it is too large, or the codec needs a
  // calibration that the coder does not have.
  virtual bool Takes(const KvCodecSpec& spec, size_t raw_bytes) const = 0;

  // Encodes a slab in place if that makes it smaller. Returns the number of bytes used, which is
  // the slab's size if not.
  virtual absl::StatusOr<size_t> Encode(const KvCodecSpec& spec, const KvRun& run,
                                        std::span<std::byte> slab) = 0;
  virtual absl::StatusOr<KvCodecHeader> ReadHeader(std::span<const std::byte> encoded) = 0;
  virtual absl::Status Decode(const KvCodecSpec& spec, const KvRun& run,
                              std::span<const std::byte> encoded, std::span<std::byte> raw) = 0;
  virtual absl::StatusOr<uint32_t> Checksum(std::span<const std::byte> bytes) = 0;
};

}  // namespace penstock
