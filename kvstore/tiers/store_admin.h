#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace penstock {

// What a store's directory holds, seen from outside. Blocking; safe beside workers that use it.

struct SegmentReport {
  std::string name;
  uint32_t writer = 0;
  bool held = false;  // a worker is running under this number
  bool sealed = false;
  uint64_t bytes = 0;
  uint64_t blocks = 0;
  uint64_t block_bytes = 0;
  uint64_t damaged = 0;  // headers, records or footers
  uint64_t torn = 0;     // blocks
  uint64_t model_fingerprint = 0;
  std::string layout;                      // in words
  std::map<std::string, uint64_t> codecs;  // blocks by how they are kept: "raw", "lx16", "lxr"
  std::string error;                       // why nothing else is known
  uint64_t verified = 0;                   // blocks whose bytes are what was written
  uint64_t corrupt = 0;                    // ... and are not
};

struct StoreReport {
  std::string directory;
  std::vector<SegmentReport> segments;  // by name
  SegmentReport Sum() const;
};

// Gets the name of each segment before it is read; false: CANCELLED. May be empty.
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
  std::vector<uint32_t> held;  // numbers of running workers, whose segments stay
};
// Removes the segments that no running worker holds.
absl::StatusOr<FlushReport> FlushStore(const std::string& directory);

}  // namespace penstock
