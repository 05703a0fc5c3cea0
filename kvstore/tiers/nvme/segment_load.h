#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvstore/tiers/disk/store_files.h"
#include "kvstore/tiers/nvme/segment_format.h"

namespace penstock {

// How many groups of a segment may be under way at once: so many at its end may be torn.
inline constexpr size_t kGroupsInFlightMax = 4;

// An open segment file. Shared by its index's keeper and by whatever reads or writes it: it is
// closed when the last of them is done.
struct SegmentFile {
  std::string path;
  OwnedFd fd;
};

// What a segment's metadata says.
struct LoadedSegment {
  std::shared_ptr<SegmentFile> file;
  SegmentHeader header;
  std::vector<BlockRecord> records;
  uint64_t bytes = 0;     // of the file
  uint32_t end_page = 0;  // behind the last group
  bool sealed = false;    // by a valid footer
  uint64_t damaged = 0;   // headers, records or footers with a wrong checksum
  uint64_t torn = 0;      // records at the end of an unsealed segment without their payload
};

// Reads headers and records; of the payloads only those of the last groups of a segment that is not
// sealed, because a crash may have torn them. DATA_LOSS when it is no segment.
absl::StatusOr<LoadedSegment> LoadSegment(StoreFiles& files, const std::string& path, bool write);

// Writes the footer behind `end_page` and cuts the file there; returns its length.
absl::StatusOr<uint64_t> SealSegment(StoreFiles& files, const SegmentFile& file,
                                     const SegmentHeader& header,
                                     const std::vector<BlockRecord>& records, uint32_t end_page);

// Whether the record's payload is what was written.
bool IsPayloadWhole(StoreFiles& files, const SegmentFile& file, const BlockRecord& record);

}  // namespace penstock
