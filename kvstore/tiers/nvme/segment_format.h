#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/paged_kv.h"
#include "kvstore/tiers/disk/store_types.h"

namespace penstock {

// The bytes of a segment file, little-endian, in pages of 4,096 bytes:
//
// Version 2; in version 1, which is read as well, every payload is the resident bytes.
//
//   page 0          segment header: what wrote it, for which blocks
//   groups          each a group header page with up to 63 records, then the records' payloads,
//                   one behind the other, each a multiple of a page
//   footer          only of a sealed segment: all records once more, in pages, then a trailer page,
//                   the file's last
//
// A record is the whole identity of a block, and the checksum of its payload; every record and
// every header has a checksum of its own. A segment without a (valid) footer is read by its chain
// of group headers, which ends at the first that is not valid. The nonce ties all parts to their
// segment.

inline constexpr size_t kSegmentPage = 4096;
inline constexpr size_t kRecordBytes = 64;
inline constexpr size_t kGroupRecordsMax = 63;
// What a footer may hold, far more than a segment does.
inline constexpr uint32_t kFooterRecordsMax = 1u << 24;

using PageSpan = std::span<std::byte, kSegmentPage>;

// What blocks must have in common to be of use to each other's workers. (Model, KV format, tenant
// and provenance are also in the root of every id.)
struct SegmentFormat {
  uint64_t model_fingerprint = 0;
  KvLayout layout;
  bool operator==(const SegmentFormat&) const = default;
  uint64_t Fingerprint() const;  // of all of it
};

struct SegmentHeader {
  SegmentFormat format;
  uint64_t nonce = 0;     // random
  uint64_t sequence = 0;  // of the writer's segments
  uint32_t writer = 0;
  bool operator==(const SegmentHeader&) const = default;
};

struct BlockRecord {
  BlockName name;
  uint32_t page = 0;   // of the payload, in the segment
  uint32_t pages = 0;  // of the payload
  uint32_t crc = 0;    // CRC32C of the payload's pages
  uint8_t codec = 0;   // 0: the resident bytes; else the exact KvCodec of the payload
  uint8_t uses = 0;    // known when it was written, at most 255
  bool operator==(const BlockRecord&) const = default;
};

// Sequential in the file; `format` is the fingerprint that every record carries.
struct GroupHeader {
  uint64_t nonce = 0;
  uint64_t format = 0;
  uint32_t page = 0;   // of the group header itself
  uint32_t pages = 0;  // of the whole group, this page included
  std::vector<BlockRecord> records;
  // Records whose own checksum is wrong were left out; a reader counts them.
  uint32_t damaged = 0;
};

struct SegmentTrailer {
  uint64_t nonce = 0;
  uint64_t format = 0;
  uint32_t footer_page = 0;  // where the records begin
  uint32_t records = 0;
  bool operator==(const SegmentTrailer&) const = default;
};

void EncodeSegmentHeader(const SegmentHeader& header, PageSpan page);
void EncodeGroupHeader(const GroupHeader& group, PageSpan page);
void EncodeTrailer(const SegmentTrailer& trailer, PageSpan page);
// Whole pages.
std::vector<std::byte> EncodeFooter(std::span<const BlockRecord> records, uint64_t format);

// DATA_LOSS names what is wrong: magic, version, checksum, or a field out of its range.
absl::StatusOr<SegmentHeader> DecodeSegmentHeader(std::span<const std::byte> page);
absl::StatusOr<GroupHeader> DecodeGroupHeader(std::span<const std::byte> page);
absl::StatusOr<SegmentTrailer> DecodeTrailer(std::span<const std::byte> page);
// All `count` records, or DATA_LOSS: a damaged footer is not used at all, the groups are.
absl::StatusOr<std::vector<BlockRecord>> DecodeFooter(std::span<const std::byte> bytes,
                                                      uint32_t count, uint64_t format);

constexpr size_t FooterBytes(size_t records) {
  return (records * kRecordBytes + kSegmentPage - 1) / kSegmentPage * kSegmentPage;
}

}  // namespace penstock
