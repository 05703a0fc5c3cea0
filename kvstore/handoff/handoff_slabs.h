#pragma once

#include <cstddef>
#include <span>

#include "kernels/paged_kv.h"
#include "kvstore/codec/codec.h"
#include "kvstore/wire/slab.h"

namespace penstock {

// The bytes of a slab's payload: for each block in [first_block, first_block + blocks) those of
// layers [first_layer, first_layer + layers). `pages[i]` is the page of the slab's i-th block;
// `payload` has header.raw_bytes. Any thread that may touch the pages.
void GatherSlab(const PagedKv& kv, const SlabHeader& header, std::span<const uint32_t> pages,
                std::span<std::byte> payload);
void ScatterSlab(const PagedKv& kv, const SlabHeader& header, std::span<const uint32_t> pages,
                 std::span<const std::byte> payload);

// DATA_LOSS unless `crc`, of the payload that is here, is the one that the header names.
absl::Status CheckPayload(const SlabHeader& header, uint32_t crc);

// What a slab's payload holds, as the codecs see it; `sequence_blocks` are those of the sequence.
KvRun RunOfSlab(const KvLayout& layout, const SlabHeader& header, uint32_t sequence_blocks);

struct SlabDecoding {
  const KvLayout& layout;
  std::span<const KvCodecSpec> allowed;
  uint32_t sequence_blocks = 0;
  const KvCalibration* calibration = nullptr;
};
// FAILED_PRECONDITION names a codec that is not one of `how.allowed`.
absl::Status CheckCodec(const SlabDecoding& how, const SlabHeader& header,
                        const KvCodecSpec& codec);
// Decodes a payload of SlabCodec::kEncoded into header.raw_bytes. FAILED_PRECONDITION names a codec
// that is not one of `allowed`, DATA_LOSS what does not add up.
absl::Status DecodeSlab(const SlabDecoding& how, const SlabHeader& header,
                        std::span<const std::byte> payload, std::span<std::byte> raw);

}  // namespace penstock
