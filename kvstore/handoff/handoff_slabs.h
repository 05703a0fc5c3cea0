#pragma once

#include <cstddef>
#include <span>

#include "kernels/paged_kv.h"
#include "kvstore/codec/codec.h"
#include "kvstore/wire/slab.h"

namespace penstock {

// Copy between pages and a slab's payload, which holds, for each block in [first_block, first_block
// + blocks), the bytes of layers [first_layer, first_layer + layers). `pages[i]` is the page of the
// slab's i-th block; `payload` has header.raw_bytes. Any thread that may access the pages.
void GatherSlab(const PagedKv& kv, const SlabHeader& header, std::span<const uint32_t> pages,
                std::span<std::byte> payload);
void ScatterSlab(const PagedKv& kv, const SlabHeader& header, std::span<const uint32_t> pages,
                 std::span<const std::byte> payload);

// DATA_LOSS unless `crc`, the payload's actual checksum, equals the header's.
absl::Status CheckPayload(const SlabHeader& header, uint32_t crc);

// The slab's payload as a run for the codecs; `sequence_blocks` is the sequence's number of blocks.
KvRun RunOfSlab(const KvLayout& layout, const SlabHeader& header, uint32_t sequence_blocks);

struct SlabDecoding {
  const KvLayout& layout;
  std::span<const KvCodecSpec> allowed;
  uint32_t sequence_blocks = 0;
  const KvCalibration* calibration = nullptr;
};
// FAILED_PRECONDITION names a codec that is not in `how.allowed`.
absl::Status CheckCodec(const SlabDecoding& how, const SlabHeader& header,
                        const KvCodecSpec& codec);
// Decodes a payload of SlabCodec::kEncoded into header.raw_bytes. FAILED_PRECONDITION names a codec
// that is not in `how.allowed`; DATA_LOSS names the damaged part.
absl::Status DecodeSlab(const SlabDecoding& how, const SlabHeader& header,
                        std::span<const std::byte> payload, std::span<std::byte> raw);

}  // namespace penstock
