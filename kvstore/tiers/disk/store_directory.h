#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "kvstore/tiers/disk/store_files.h"

namespace penstock {

// A store's directory is shared by any number of workers. Each has a writer number for the lifetime
// of its process, held by a lock on file NN.lock, and writes only segments of that number:
//   00.lock  00-00000001.seg  00-00000002.seg  01.lock  01-00000001.seg ...
// A restarted worker takes a free number whose segments have its own format, so it starts warm.

inline constexpr uint32_t kWritersMax = 100;

struct SegmentName {
  uint32_t writer = 0;
  uint64_t sequence = 0;
  auto operator<=>(const SegmentName&) const = default;
};
std::string SegmentFileName(const SegmentName& name);
// nullopt when the file is not a segment.
std::optional<SegmentName> ParseSegmentFileName(std::string_view name);
std::string LockFileName(uint32_t writer);
std::optional<uint32_t> ParseLockFileName(std::string_view name);

struct WriterClaim {
  uint32_t writer = 0;
  OwnedFd lock;
  std::vector<SegmentName> segments;  // of this writer, oldest first
};

// Makes the directory (not its parent) and claims a number in it for blocks of `format`: one left
// by a worker of that format; else one of another format whose worker was not seen for
// `foreign_idle`; else a new one. RESOURCE_EXHAUSTED when all numbers are in use.
absl::StatusOr<WriterClaim> ClaimWriter(StoreFiles& files, const std::string& directory,
                                        uint64_t format, Duration foreign_idle);

// NOT_FOUND when the claim's lock file was removed: another worker may have the number now.
absl::Status CheckClaim(const WriterClaim& claim, const std::string& directory);

// True when a running worker has the number. Does not disturb that worker.
bool IsHeld(const std::string& directory, uint32_t writer);

// Updates the lock file's time, which shows other workers that this one is alive.
void RefreshClaim(const WriterClaim& claim);

}  // namespace penstock
