#include "kvstore/tiers/nvme/segment_load.h"

#include <algorithm>
#include <deque>

#include "base/crc32c.h"

namespace penstock {
namespace {

// Bytes read at a time when payloads are checked.
constexpr size_t kCheckBytes = size_t{1} << 20;

// Reads the records of the footer; an error when there is no valid footer.
absl::StatusOr<SegmentTrailer> ReadFooter(StoreFiles& files, LoadedSegment& segment) {
  const uint64_t pages = segment.bytes / kSegmentPage;
  if (segment.bytes % kSegmentPage != 0 || pages < 2) return NotFound("no trailer");
  DirectBuffer page(kSegmentPage);
  RETURN_IF_ERROR(files.Read(segment.file->fd.get(), (pages - 1) * kSegmentPage, page.bytes()));
  ASSIGN_OR_RETURN(const SegmentTrailer trailer, DecodeTrailer(page.bytes()));
  const uint64_t footer_bytes = FooterBytes(trailer.records);
  if (trailer.nonce != segment.header.nonce ||
      trailer.format != segment.header.format.Fingerprint() ||
      trailer.footer_page * kSegmentPage + footer_bytes + kSegmentPage != segment.bytes) {
    return DataLoss("the trailer is another segment's");
  }
  DirectBuffer footer(footer_bytes);
  RETURN_IF_ERROR(
      files.Read(segment.file->fd.get(), trailer.footer_page * kSegmentPage, footer.bytes()));
  ASSIGN_OR_RETURN(segment.records, DecodeFooter(footer.bytes(), trailer.records, trailer.format));
  for (const BlockRecord& record : segment.records) {
    if (record.page + record.pages > trailer.footer_page) {
      return DataLoss("a record lies outside its segment");
    }
  }
  return trailer;
}

// Reads the group at `page`; an error when there is no valid group.
absl::StatusOr<GroupHeader> ReadGroup(StoreFiles& files, const LoadedSegment& segment,
                                      uint32_t page, DirectBuffer& buffer) {
  RETURN_IF_ERROR(
      files.Read(segment.file->fd.get(), uint64_t{page} * kSegmentPage, buffer.bytes()));
  ASSIGN_OR_RETURN(GroupHeader group, DecodeGroupHeader(buffer.bytes()));
  if (group.nonce != segment.header.nonce || group.format != segment.header.format.Fingerprint() ||
      group.page != page || uint64_t{page} + group.pages > segment.bytes / kSegmentPage) {
    return DataLoss("the group is another segment's");
  }
  return group;
}

// Follows the chain of groups. The payloads of the last groups are verified.
void ReadChain(StoreFiles& files, LoadedSegment& segment) {
  DirectBuffer page(kSegmentPage);
  std::deque<std::vector<BlockRecord>> last;
  const auto keep = [&](const std::vector<BlockRecord>& records) {
    segment.records.insert(segment.records.end(), records.begin(), records.end());
  };
  segment.end_page = 1;
  while ((uint64_t{segment.end_page} + 1) * kSegmentPage <= segment.bytes) {
    auto group = ReadGroup(files, segment, segment.end_page, page);
    if (!group.ok()) {
      // Bytes that were never written are zero. A crash may come between a footer and the end of
      // its file.
      const auto bytes = page.bytes();
      const bool zeros = std::all_of(bytes.begin(), bytes.end(),
                                     [](std::byte byte) { return byte == std::byte{0}; });
      const bool footer = DecodeFooter(bytes, 1, segment.header.format.Fingerprint()).ok();
      if (!zeros && !footer) ++segment.damaged;
      break;
    }
    segment.damaged += group->damaged;
    segment.end_page += group->pages;
    last.push_back(std::move(group->records));
    if (last.size() <= kGroupsInFlightMax) continue;
    keep(last.front());
    last.pop_front();
  }
  for (std::vector<BlockRecord>& records : last) {
    const size_t before = records.size();
    std::erase_if(records, [&](const BlockRecord& record) {
      return !IsPayloadWhole(files, *segment.file, record);
    });
    segment.torn += before - records.size();
    keep(records);
  }
}

}  // namespace

absl::StatusOr<LoadedSegment> LoadSegment(StoreFiles& files, const std::string& path, bool write) {
  LoadedSegment segment;
  ASSIGN_OR_RETURN(OwnedFd fd, files.Open(path, write));
  segment.file = std::make_shared<SegmentFile>();
  segment.file->path = path;
  segment.file->fd = std::move(fd);
  ASSIGN_OR_RETURN(segment.bytes, files.Size(segment.file->fd.get()));
  if (segment.bytes < kSegmentPage) return DataLoss("{}: shorter than a header", path);
  DirectBuffer page(kSegmentPage);
  RETURN_IF_ERROR(files.Read(segment.file->fd.get(), 0, page.bytes()));
  auto header = DecodeSegmentHeader(page.bytes());
  if (!header.ok()) return Annotate(header.status(), path);
  segment.header = *header;
  const auto trailer = ReadFooter(files, segment);
  if (trailer.ok()) {
    segment.sealed = true;
    segment.end_page = trailer->footer_page;
    return segment;
  }
  segment.records.clear();
  ReadChain(files, segment);
  return segment;
}

absl::StatusOr<uint64_t> SealSegment(StoreFiles& files, const SegmentFile& file,
                                     const SegmentHeader& header,
                                     const std::vector<BlockRecord>& records, uint32_t end_page) {
  const uint64_t format = header.format.Fingerprint();
  const std::vector<std::byte> footer = EncodeFooter(records, format);
  DirectBuffer buffer(footer.size() + kSegmentPage);
  std::copy(footer.begin(), footer.end(), buffer.bytes().begin());
  EncodeTrailer({.nonce = header.nonce,
                 .format = format,
                 .footer_page = end_page,
                 .records = static_cast<uint32_t>(records.size())},
                buffer.bytes().last<kSegmentPage>());
  const uint64_t at = uint64_t{end_page} * kSegmentPage;
  RETURN_IF_ERROR(files.Write(file.fd.get(), at, buffer.bytes()));
  const uint64_t bytes = at + buffer.bytes().size();
  RETURN_IF_ERROR(files.Finish(file.fd.get(), bytes));
  return bytes;
}

bool IsPayloadWhole(StoreFiles& files, const SegmentFile& file, const BlockRecord& record) {
  uint64_t left = uint64_t{record.pages} * kSegmentPage;
  uint64_t at = uint64_t{record.page} * kSegmentPage;
  DirectBuffer buffer(std::min<uint64_t>(left, kCheckBytes));
  uint32_t crc = 0;
  while (left > 0) {
    const auto step = buffer.bytes().first(std::min<uint64_t>(left, kCheckBytes));
    if (!files.Read(file.fd.get(), at, step).ok()) return false;
    crc = Crc32c(step, crc);
    at += step.size();
    left -= step.size();
  }
  return crc == record.crc;
}

}  // namespace penstock
