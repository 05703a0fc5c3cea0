#include "kvstore/codec/codec_header.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/crc32c.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the header is copied as it is in memory");

constexpr uint32_t kMagic = 0x43564b50;  // "PKVC"
constexpr uint8_t kVersion = 1;
constexpr uint8_t kStored = 1;
constexpr uint8_t kChecksum = 2;
constexpr uint8_t kFlags = kStored | kChecksum;

// Every field is naturally aligned, so there is no hidden padding.
struct Packed {
  uint32_t magic;
  uint8_t version;
  uint8_t codec;
  uint8_t level;
  uint8_t flags;
  uint32_t first_block;
  uint32_t blocks;
  uint16_t first_layer;
  uint16_t layers;
  uint16_t kv_heads;
  uint16_t planes;
  uint16_t block_tokens;
  uint16_t head_dim;
  uint16_t rope_dim;
  uint16_t source;  // KvDtype of the raw bytes
  uint16_t protected_first;
  uint16_t protected_last;
  uint32_t raw_bytes;
  uint64_t calibration;
  uint32_t payload_bytes;
  uint32_t payload_crc;
  uint32_t reserved;
  uint32_t header_crc;  // CRC32C of the first 60 bytes
};
static_assert(sizeof(Packed) == kKvCodecHeaderBytes);

uint32_t HeaderCrc(const Packed& packed) {
  return Crc32c(std::as_bytes(std::span(&packed, 1)).first(offsetof(Packed, header_crc)));
}

absl::Status CheckForm(const Packed& packed) {
  if (packed.magic != kMagic) return DataLoss("KV codec header: magic is {:#010x}", packed.magic);
  if (packed.version != kVersion) {
    return DataLoss("KV codec header: version is {}, this build reads {}", packed.version,
                    kVersion);
  }
  if (packed.header_crc != HeaderCrc(packed)) {
    return DataLoss("KV codec header: header checksum is {:#010x}, computed {:#010x}",
                    packed.header_crc, HeaderCrc(packed));
  }
  const KvCodecSpec spec{static_cast<KvCodec>(packed.codec), packed.level};
  const std::vector<KvCodecSpec> known = AllKvCodecs();
  if (std::find(known.begin(), known.end(), spec) == known.end()) {
    return DataLoss("KV codec header: codec {:#x} with level {} is unknown", packed.codec,
                    packed.level);
  }
  if ((packed.flags & ~kFlags) != 0 || packed.reserved != 0) {
    return DataLoss("KV codec header: flags are {:#x}, known are {:#x}; reserved bytes {:#x}",
                    packed.flags, kFlags, packed.reserved);
  }
  if (packed.source != static_cast<uint16_t>(KvDtype::kBf16)) {
    return DataLoss("KV codec header: source format {} is unknown", packed.source);
  }
  if ((packed.flags & kChecksum) == 0 && packed.payload_crc != 0) {
    return DataLoss("KV codec header: payload checksum without its flag");
  }
  return absl::OkStatus();
}

}  // namespace

KvCodecHeaderBytes EncodeKvCodecHeader(const KvCodecHeader& header) {
  const KvRun& run = header.run;
  Packed packed{.magic = kMagic,
                .version = kVersion,
                .codec = static_cast<uint8_t>(header.spec.codec),
                .level = header.spec.level,
                .flags = static_cast<uint8_t>((header.stored ? kStored : 0) |
                                              (header.checksum ? kChecksum : 0)),
                .first_block = run.first_block,
                .blocks = run.blocks,
                .first_layer = run.first_layer,
                .layers = run.layers,
                .kv_heads = run.kv_heads,
                .planes = run.planes,
                .block_tokens = run.block_tokens,
                .head_dim = run.head_dim,
                .rope_dim = run.rope_dim,
                .source = static_cast<uint16_t>(KvDtype::kBf16),
                .protected_first = run.protected_first,
                .protected_last = run.protected_last,
                .raw_bytes = static_cast<uint32_t>(run.RawBytes()),
                .calibration = header.calibration,
                .payload_bytes = header.payload_bytes,
                .payload_crc = header.payload_crc,
                .reserved = 0,
                .header_crc = 0};
  packed.header_crc = HeaderCrc(packed);
  return std::bit_cast<KvCodecHeaderBytes>(packed);
}

absl::StatusOr<KvCodecHeader> DecodeKvCodecHeader(std::span<const std::byte> bytes) {
  if (bytes.size() != kKvCodecHeaderBytes) {
    return DataLoss("KV codec header: {} bytes, must be {}", bytes.size(), kKvCodecHeaderBytes);
  }
  Packed packed;
  std::memcpy(&packed, bytes.data(), sizeof(packed));
  RETURN_IF_ERROR(CheckForm(packed));
  const KvRun run{.first_block = packed.first_block,
                  .blocks = packed.blocks,
                  .first_layer = packed.first_layer,
                  .layers = packed.layers,
                  .kv_heads = packed.kv_heads,
                  .planes = packed.planes,
                  .block_tokens = packed.block_tokens,
                  .head_dim = packed.head_dim,
                  .rope_dim = packed.rope_dim,
                  .protected_first = packed.protected_first,
                  .protected_last = packed.protected_last};
  // Computed in floating point, because the product of the fields may exceed 64 bits.
  const double bytes_of_run = 2.0 * packed.blocks * packed.layers * packed.kv_heads *
                              packed.planes * packed.block_tokens * packed.head_dim;
  if (bytes_of_run > static_cast<double>(kKvRunBytesMax) || run.RawBytes() != packed.raw_bytes) {
    return DataLoss("KV codec header: raw_bytes is {}, the geometry makes {}, the limit is {}",
                    packed.raw_bytes, bytes_of_run, kKvRunBytesMax);
  }
  return KvCodecHeader{.spec = {static_cast<KvCodec>(packed.codec), packed.level},
                       .stored = (packed.flags & kStored) != 0,
                       .checksum = (packed.flags & kChecksum) != 0,
                       .run = run,
                       .calibration = packed.calibration,
                       .payload_bytes = packed.payload_bytes,
                       .payload_crc = packed.payload_crc};
}

}  // namespace penstock
