#include "kvstore/wire/slab.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>

#include "base/crc32c.h"
#include "kvstore/wire/wire.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the header is copied as it is in memory");

constexpr uint32_t kMagic = 0x42535350;  // "PSSB"
constexpr uint8_t kVersion = 1;

// The layout on the wire. Every field is naturally aligned, so there is no hidden padding.
struct Packed {
  uint32_t magic;
  uint8_t version;
  uint8_t codec;
  uint16_t reserved0;
  uint64_t session;
  uint64_t nonce;
  uint32_t epoch;
  uint32_t sequence;
  uint16_t first_layer;
  uint16_t layers;
  uint32_t first_block;
  uint32_t blocks;
  uint32_t raw_bytes;
  uint32_t payload_bytes;
  uint32_t payload_crc;
  uint32_t reserved1;
  uint32_t header_crc;  // CRC32C of the first 60 bytes
};
static_assert(sizeof(Packed) == kSlabHeaderBytes);

uint32_t HeaderCrc(const Packed& packed) {
  return Crc32c(std::as_bytes(std::span(&packed, 1)).first(offsetof(Packed, header_crc)));
}

absl::Status CheckForm(const Packed& packed) {
  if (packed.magic != kMagic) return DataLoss("slab header: magic is {:#010x}", packed.magic);
  if (packed.version != kVersion) {
    return DataLoss(
        "slab header: version is {}, this build reads {}; run one version on both sides",
        packed.version, kVersion);
  }
  if (packed.header_crc != HeaderCrc(packed)) {
    return DataLoss("slab header: header checksum is {:#010x}, computed {:#010x}",
                    packed.header_crc, HeaderCrc(packed));
  }
  if (packed.reserved0 != 0 || packed.reserved1 != 0) {
    return DataLoss("slab header: reserved bytes are {:#x} and {:#x}, must be 0", packed.reserved0,
                    packed.reserved1);
  }
  if (packed.codec > static_cast<uint8_t>(SlabCodec::kEncoded)) {
    return DataLoss("slab header: codec {} is unknown", packed.codec);
  }
  return absl::OkStatus();
}

absl::Status CheckLengths(const Packed& packed) {
  const uint32_t longest = std::max(packed.payload_bytes, packed.raw_bytes);
  if (longest > kWirePayloadMax) {
    return DataLoss("slab header: lengths: {} bytes, the limit is {}", longest, kWirePayloadMax);
  }
  if (packed.codec == static_cast<uint8_t>(SlabCodec::kRaw) &&
      packed.payload_bytes != packed.raw_bytes) {
    return DataLoss("slab header: lengths: codec raw with payload_bytes {} and raw_bytes {}",
                    packed.payload_bytes, packed.raw_bytes);
  }
  if (packed.codec == static_cast<uint8_t>(SlabCodec::kEncoded) &&
      packed.payload_bytes >= packed.raw_bytes) {
    return DataLoss("slab header: lengths: encoded with payload_bytes {} and raw_bytes {}",
                    packed.payload_bytes, packed.raw_bytes);
  }
  if (packed.layers > std::numeric_limits<uint16_t>::max() - packed.first_layer) {
    return DataLoss("slab header: lengths: layers {} + {} do not fit 16 bits", packed.first_layer,
                    packed.layers);
  }
  if (packed.blocks > std::numeric_limits<uint32_t>::max() - packed.first_block) {
    return DataLoss("slab header: lengths: blocks {} + {} do not fit 32 bits", packed.first_block,
                    packed.blocks);
  }
  return absl::OkStatus();
}

}  // namespace

SlabHeaderBytes EncodeSlabHeader(const SlabHeader& header) {
  Packed packed{.magic = kMagic,
                .version = kVersion,
                .codec = static_cast<uint8_t>(header.codec),
                .reserved0 = 0,
                .session = header.key.session,
                .nonce = header.key.nonce,
                .epoch = header.key.epoch,
                .sequence = header.sequence,
                .first_layer = header.first_layer,
                .layers = header.layers,
                .first_block = header.first_block,
                .blocks = header.blocks,
                .raw_bytes = header.raw_bytes,
                .payload_bytes = header.payload_bytes,
                .payload_crc = header.payload_crc,
                .reserved1 = 0,
                .header_crc = 0};
  packed.header_crc = HeaderCrc(packed);
  return std::bit_cast<SlabHeaderBytes>(packed);
}

absl::StatusOr<SlabHeader> DecodeSlabHeader(std::span<const std::byte> bytes) {
  if (bytes.size() != kSlabHeaderBytes) {
    return DataLoss("slab header: {} bytes, must be {}", bytes.size(), kSlabHeaderBytes);
  }
  Packed packed;
  std::memcpy(&packed, bytes.data(), sizeof(packed));
  RETURN_IF_ERROR(CheckForm(packed));
  RETURN_IF_ERROR(CheckLengths(packed));
  return SlabHeader{
      .key = {.session = packed.session, .epoch = packed.epoch, .nonce = packed.nonce},
      .codec = static_cast<SlabCodec>(packed.codec),
      .sequence = packed.sequence,
      .first_layer = packed.first_layer,
      .layers = packed.layers,
      .first_block = packed.first_block,
      .blocks = packed.blocks,
      .raw_bytes = packed.raw_bytes,
      .payload_bytes = packed.payload_bytes,
      .payload_crc = packed.payload_crc};
}

}  // namespace penstock
