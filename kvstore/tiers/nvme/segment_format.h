#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/paged_kv.h"
#include "kvstore/tiers/disk/store_types.h"

namespace penstock {

// The format of a segment file: little-endian, in pages of 4,096 bytes. This is version 2; in
// version 1, which is also read, every payload is the resident bytes.
//
//   page 0          segment header: its writer and the format of its blocks
//   groups          each a group header page with up to 63 records, then the records' payloads
//                   one after the other, each a multiple of a page
//   footer          only in a sealed segment: all records once more, in pages, then a trailer
//                   page, the file's last
//
// A record holds the whole identity of a block and the checksum of its payload. Every record and
// every header has its own checksum. A segment without a valid footer is read by its chain of group
// headers, which ends at the first invalid one. The nonce ties all parts to their segment.

inline constexpr size_t kSegmentPage = 4096;
inline constexpr size_t kRecordBytes = 64;
inline constexpr size_t kGroupRecordsMax = 63;
// The limit of records in a footer, far more than a segment has.
inline constexpr uint32_t kFooterRecordsMax = 1u << 24;

using PageSpan = std::span<std::byte, kSegmentPage>;

// The properties that blocks must share to be usable by a worker. (Model, KV format, tenant and
// provenance are also part of the root of every id.)
struct SegmentFormat {
  uint64_t model_fingerprint = 0;
  KvLayout layout;
  bool operator==(const SegmentFormat&) const = default;
  uint64_t Fingerprint() const;  // over all fields
};

struct SegmentHeader {
  SegmentFormat format;
  uint64_t nonce = 0;     // random
  uint64_t sequence = 0;  // within the writer's segments
  uint32_t writer = 0;
  bool operator==(const SegmentHeader&) const = default;
};

struct BlockRecord {
  BlockName name;
  uint32_t page = 0;     // of the payload, in the segment
  uint32_t pages = 0;    // of the payload
  uint32_t crc = 0;      // CRC32C of the payload's pages
  uint8_t codec = 0;     // 0: resident bytes; else the exact KvCodec of the payload
  uint8_t uses = 0;      // number of uses when it was written, at most 255
  bool partial = false;  // as in SpillBlock
  bool operator==(const BlockRecord&) const = default;
};

// The header of a group; `format` is the fingerprint that every record carries.
struct GroupHeader {
  uint64_t nonce = 0;
  uint64_t format = 0;
  uint32_t page = 0;   // of the group header itself
  uint32_t pages = 0;  // of the whole group, including this page
  std::vector<BlockRecord> records;
  // Number of records that were left out because their own checksum is wrong.
  uint32_t damaged = 0;
};

struct SegmentTrailer {
  uint64_t nonce = 0;
  uint64_t format = 0;
  uint32_t footer_page = 0;  // first page of the records
  uint32_t records = 0;
  bool operator==(const SegmentTrailer&) const = default;
};

void EncodeSegmentHeader(const SegmentHeader& header, PageSpan page);
void EncodeGroupHeader(const GroupHeader& group, PageSpan page);
void EncodeTrailer(const SegmentTrailer& trailer, PageSpan page);
// Returns whole pages.
std::vector<std::byte> EncodeFooter(std::span<const BlockRecord> records, uint64_t format);

// DATA_LOSS names the problem: magic, version, checksum, or a field out of range.
absl::StatusOr<SegmentHeader> DecodeSegmentHeader(std::span<const std::byte> page);
absl::StatusOr<GroupHeader> DecodeGroupHeader(std::span<const std::byte> page);
absl::StatusOr<SegmentTrailer> DecodeTrailer(std::span<const std::byte> page);
// Returns all `count` records, or DATA_LOSS. A damaged footer is ignored as a whole, and the groups
// are read instead.
absl::StatusOr<std::vector<BlockRecord>> DecodeFooter(std::span<const std::byte> bytes,
                                                      uint32_t count, uint64_t format);

constexpr size_t FooterBytes(size_t records) {
  return (records * kRecordBytes + kSegmentPage - 1) / kSegmentPage * kSegmentPage;
}

}  // namespace penstock
