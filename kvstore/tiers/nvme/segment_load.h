#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvstore/tiers/disk/store_files.h"
#include "kvstore/tiers/nvme/segment_format.h"

namespace penstock {

// The maximum number of pending groups of a segment, and so of torn groups at its end.
inline constexpr size_t kGroupsInFlightMax = 4;

// An open segment file. Shared by the segment table and by pending reads and writes; closed when
// the last of them releases it.
struct SegmentFile {
  std::string path;
  OwnedFd fd;
};

// The metadata of a segment.
struct LoadedSegment {
  std::shared_ptr<SegmentFile> file;
  SegmentHeader header;
  std::vector<BlockRecord> records;
  uint64_t bytes = 0;     // size of the file
  uint32_t end_page = 0;  // the page after the last group
  bool sealed = false;    // has a valid footer
  uint64_t damaged = 0;   // headers, records or footers with a wrong checksum
  uint64_t torn = 0;      // records at the end of an unsealed segment without their payload
};

// Reads headers and records. Of the payloads it reads only those of the last groups of an unsealed
// segment, because a crash may have torn them. DATA_LOSS when the file is no segment.
absl::StatusOr<LoadedSegment> LoadSegment(StoreFiles& files, const std::string& path, bool write);

// Writes the footer at `end_page` and truncates the file after it; returns the file's size.
absl::StatusOr<uint64_t> SealSegment(StoreFiles& files, const SegmentFile& file,
                                     const SegmentHeader& header,
                                     const std::vector<BlockRecord>& records, uint32_t end_page);

// True when the record's payload has the recorded checksum.
bool IsPayloadWhole(StoreFiles& files, const SegmentFile& file, const BlockRecord& record);

}  // namespace penstock
