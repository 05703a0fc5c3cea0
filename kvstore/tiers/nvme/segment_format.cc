#include "kvstore/tiers/nvme/segment_format.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "base/crc32c.h"
#include "kvstore/tiers/nvme/extent_codec.h"

namespace penstock {
namespace {

// "PSSG", "PSGR" and "PSTR" as bytes in the file.
constexpr uint32_t kSegmentMagic = 0x47535350;
constexpr uint32_t kGroupMagic = 0x52475350;
constexpr uint32_t kTrailerMagic = 0x52545350;
constexpr uint32_t kVersion = 2;
constexpr uint32_t kVersionMin = 1;
constexpr size_t kGroupFixedBytes = 64;

// Writes fields one after the other. Writer and Reader use the same list of fields, which keeps
// them consistent.
class Writer {
 public:
  explicit Writer(std::span<std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  void operator()(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    PENSTOCK_CHECK_LE(at_ + sizeof(T), bytes_.size());
    std::memcpy(bytes_.data() + at_, &value, sizeof(T));
    at_ += sizeof(T);
  }

 private:
  std::span<std::byte> bytes_;
  size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  void operator()(T& value) {
    PENSTOCK_CHECK_LE(at_ + sizeof(T), bytes_.size());
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
  }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

template <class Archive, class Header>
void SegmentFields(Archive& archive, Header& header) {
  archive(header.format.model_fingerprint);
  archive(header.format.layout.layers);
  archive(header.format.layout.kv_heads);
  archive(header.format.layout.head_dim);
  archive(header.format.layout.block_tokens);
  archive(header.format.layout.dtype);
  archive(header.nonce);
  archive(header.sequence);
  archive(header.writer);
  // Zero in segments that were written before these were stored.
  archive(header.format.layout.window);
  archive(header.format.layout.latent_rope_dim);
  archive(header.format.layout.group.window);
  archive(header.format.layout.group.layers);
}

template <class Archive, class Record>
void RecordFields(Archive& archive, Record& record) {
  archive(record.name.id.bytes);
  archive(record.name.parent.bytes);
  archive(record.page);
  archive(record.pages);
  archive(record.crc);
  archive(record.codec);
  archive(record.uses);
  archive(record.partial);  // zero in records that were written before it was stored
}

constexpr size_t kRecordFormatAt = 48;  // after the fields above and a zero byte

void SealBytes(std::span<std::byte> bytes) {
  const uint32_t crc = Crc32c(bytes.first(bytes.size() - 4));
  std::memcpy(bytes.data() + bytes.size() - 4, &crc, sizeof(crc));
}

bool IsSealed(std::span<const std::byte> bytes) {
  uint32_t crc;
  std::memcpy(&crc, bytes.data() + bytes.size() - 4, sizeof(crc));
  return crc == Crc32c(bytes.first(bytes.size() - 4));
}

void EncodeRecord(const BlockRecord& record, uint64_t format, std::span<std::byte> bytes) {
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  Writer writer(bytes);
  RecordFields(writer, record);
  std::memcpy(bytes.data() + kRecordFormatAt, &format, sizeof(format));
  SealBytes(bytes);
}

// The checksum also covers the bytes between the fields.
bool DecodeRecord(std::span<const std::byte> bytes, uint64_t format, BlockRecord& record) {
  if (!IsSealed(bytes)) return false;
  uint64_t own_format;
  std::memcpy(&own_format, bytes.data() + kRecordFormatAt, sizeof(own_format));
  Reader reader(bytes);
  RecordFields(reader, record);
  return own_format == format && IsExtentCodec(record.codec) && record.page > 0 &&
         record.pages > 0 && record.page <= UINT32_MAX - record.pages;
}

// Checks the magic and version at the start and the checksum at the end.
absl::Status CheckPage(std::span<const std::byte> page, uint32_t magic, const char* what) {
  if (page.size() != kSegmentPage) {
    return DataLoss("{}: {} bytes instead of {}", what, page.size(), kSegmentPage);
  }
  Reader reader(page);
  uint32_t own_magic;
  uint32_t version;
  reader(own_magic);
  reader(version);
  if (own_magic != magic) return DataLoss("{}: wrong magic", what);
  if (!IsSealed(page)) return DataLoss("{}: wrong checksum", what);
  if (version < kVersionMin || version > kVersion) {
    return DataLoss("{}: version is {}, this build reads {} to {}", what, version, kVersionMin,
                    kVersion);
  }
  return absl::OkStatus();
}

bool IsSound(const KvLayout& layout) {
  // Far more than any model has, and small enough that no product overflows.
  const auto fits = [](int32_t value, int32_t max) { return value > 0 && value <= max; };
  return fits(layout.layers, 1 << 12) && fits(layout.kv_heads, 1 << 12) &&
         fits(layout.head_dim, 1 << 16) && fits(layout.block_tokens, 1 << 10) &&
         layout.window >= 0 && layout.group.window >= 0 && layout.latent_rope_dim >= 0 &&
         layout.latent_rope_dim < layout.head_dim &&
         std::find(std::begin(kKvDtypes), std::end(kKvDtypes), layout.dtype) != std::end(kKvDtypes);
}

}  // namespace

uint64_t SegmentFormat::Fingerprint() const {
  uint64_t hash = layout.Fingerprint();  // FNV-1a continues from there.
  for (int shift = 0; shift < 64; shift += 8) {
    hash = (hash ^ ((model_fingerprint >> shift) & 0xff)) * 0x100000001b3u;
  }
  return hash;
}

void EncodeSegmentHeader(const SegmentHeader& header, PageSpan page) {
  std::fill(page.begin(), page.end(), std::byte{0});
  Writer writer(page);
  writer(kSegmentMagic);
  writer(kVersion);
  SegmentFields(writer, header);
  SealBytes(page);
}

absl::StatusOr<SegmentHeader> DecodeSegmentHeader(std::span<const std::byte> page) {
  RETURN_IF_ERROR(CheckPage(page, kSegmentMagic, "segment header"));
  SegmentHeader header;
  Reader reader(page.subspan(8));
  SegmentFields(reader, header);
  if (!IsSound(header.format.layout)) return DataLoss("segment header: the layout is out of range");
  return header;
}

void EncodeGroupHeader(const GroupHeader& group, PageSpan page) {
  PENSTOCK_CHECK_LE(group.records.size(), kGroupRecordsMax);
  std::fill(page.begin(), page.end(), std::byte{0});
  const std::span fixed = page.first(kGroupFixedBytes);
  Writer writer(fixed);
  writer(kGroupMagic);
  writer(kVersion);
  writer(group.nonce);
  writer(group.format);
  writer(group.page);
  writer(group.pages);
  writer(static_cast<uint32_t>(group.records.size()));
  SealBytes(fixed);
  for (size_t i = 0; i < group.records.size(); ++i) {
    EncodeRecord(group.records[i], group.format,
                 page.subspan(kGroupFixedBytes + i * kRecordBytes, kRecordBytes));
  }
}

absl::StatusOr<GroupHeader> DecodeGroupHeader(std::span<const std::byte> page) {
  if (page.size() != kSegmentPage) return DataLoss("group header: {} bytes", page.size());
  const std::span fixed = page.first(kGroupFixedBytes);
  if (!IsSealed(fixed)) return DataLoss("group header: wrong checksum");
  GroupHeader group;
  uint32_t magic;
  uint32_t version;
  uint32_t records;
  Reader reader(fixed);
  reader(magic);
  reader(version);
  reader(group.nonce);
  reader(group.format);
  reader(group.page);
  reader(group.pages);
  reader(records);
  if (magic != kGroupMagic || version < kVersionMin || version > kVersion)
    return DataLoss("group header: wrong magic or version");
  if (records > kGroupRecordsMax || group.pages < 1 || group.page > UINT32_MAX - group.pages) {
    return DataLoss("group header: {} records in {} pages", records, group.pages);
  }
  for (uint32_t i = 0; i < records; ++i) {
    BlockRecord record;
    const auto bytes = page.subspan(kGroupFixedBytes + i * kRecordBytes, kRecordBytes);
    const bool inside = DecodeRecord(bytes, group.format, record) && record.page > group.page &&
                        record.page + record.pages <= group.page + group.pages;
    if (inside) {
      group.records.push_back(record);
    } else {
      ++group.damaged;
    }
  }
  return group;
}

void EncodeTrailer(const SegmentTrailer& trailer, PageSpan page) {
  std::fill(page.begin(), page.end(), std::byte{0});
  Writer writer(page);
  writer(kTrailerMagic);
  writer(kVersion);
  writer(trailer.nonce);
  writer(trailer.format);
  writer(trailer.footer_page);
  writer(trailer.records);
  SealBytes(page);
}

absl::StatusOr<SegmentTrailer> DecodeTrailer(std::span<const std::byte> page) {
  RETURN_IF_ERROR(CheckPage(page, kTrailerMagic, "trailer"));
  SegmentTrailer trailer;
  Reader reader(page.subspan(8));
  reader(trailer.nonce);
  reader(trailer.format);
  reader(trailer.footer_page);
  reader(trailer.records);
  if (trailer.records > kFooterRecordsMax || trailer.footer_page < 1) {
    return DataLoss("trailer: {} records at page {}", trailer.records, trailer.footer_page);
  }
  return trailer;
}

std::vector<std::byte> EncodeFooter(std::span<const BlockRecord> records, uint64_t format) {
  std::vector<std::byte> bytes(FooterBytes(records.size()));
  for (size_t i = 0; i < records.size(); ++i) {
    EncodeRecord(records[i], format, std::span(bytes).subspan(i * kRecordBytes, kRecordBytes));
  }
  return bytes;
}

absl::StatusOr<std::vector<BlockRecord>> DecodeFooter(std::span<const std::byte> bytes,
                                                      uint32_t count, uint64_t format) {
  if (count > kFooterRecordsMax || bytes.size() != FooterBytes(count)) {
    return DataLoss("footer: {} bytes for {} records", bytes.size(), count);
  }
  std::vector<BlockRecord> records(count);
  for (uint32_t i = 0; i < count; ++i) {
    if (!DecodeRecord(bytes.subspan(i * kRecordBytes, kRecordBytes), format, records[i])) {
      return DataLoss("footer: record {} is damaged", i);
    }
  }
  return records;
}

}  // namespace penstock
