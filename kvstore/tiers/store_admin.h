#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace penstock {

// Inspection of a store's directory from another process. Calls block; they are safe while workers
// use the directory.

struct SegmentReport {
  std::string name;
  uint32_t writer = 0;
  bool held = false;  // a running worker has this writer number
  bool sealed = false;
  uint64_t bytes = 0;
  uint64_t blocks = 0;
  uint64_t block_bytes = 0;
  uint64_t damaged = 0;  // headers, records or footers
  uint64_t torn = 0;     // blocks
  uint64_t model_fingerprint = 0;
  std::string layout;                      // in words
  std::map<std::string, uint64_t> codecs;  // number of blocks by codec: "raw", "lx16", "lxr"
  std::string error;      // set when the segment cannot be read; the other fields are then empty
  uint64_t verified = 0;  // blocks whose bytes match their checksum
  uint64_t corrupt = 0;   // blocks whose bytes do not
};

struct StoreReport {
  std::string directory;
  std::vector<SegmentReport> segments;  // ordered by name
  SegmentReport Sum() const;
};

// Called with the name of each segment before it is read; returning false ends with CANCELLED. May
// be empty.
using StoreReadProgress = std::function<bool(const std::string&)>;
// Reads metadata only.
absl::StatusOr<StoreReport> InspectStore(const std::string& directory,
                                         const StoreReadProgress& progress = {});
// Reads every block.
absl::StatusOr<StoreReport> VerifyStore(const std::string& directory,
                                        const StoreReadProgress& progress = {});

struct FlushReport {
  uint64_t segments = 0;
  uint64_t bytes = 0;
  std::vector<uint32_t> held;  // writer numbers of running workers, whose segments stay
};
// Removes the segments that no running worker holds.
absl::StatusOr<FlushReport> FlushStore(const std::string& directory);

}  // namespace penstock
