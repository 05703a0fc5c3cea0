#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "kvstore/tiers/disk/store_files.h"

namespace penstock {

// A store's directory belongs to any number of workers. Each has a number of its own, which a
// locked file NN.lock gives it for as long as its process lives, and writes only segments of that
// number:
//   00.lock  00-00000001.seg  00-00000002.seg  01.lock  01-00000001.seg ...
// After a restart a worker takes a free number whose segments have its own format, so it starts
// warm.

inline constexpr uint32_t kWritersMax = 100;

struct SegmentName {
  uint32_t writer = 0;
  uint64_t sequence = 0;
  auto operator<=>(const SegmentName&) const = default;
};
std::string SegmentFileName(const SegmentName& name);
// nullopt: another file.
std::optional<SegmentName> ParseSegmentFileName(std::string_view name);
std::string LockFileName(uint32_t writer);
std::optional<uint32_t> ParseLockFileName(std::string_view name);

struct WriterClaim {
  uint32_t writer = 0;
  OwnedFd lock;
  std::vector<SegmentName> segments;  // of this writer, oldest first
};

// Makes the directory (not its parent) and takes a number in it for blocks of `format`: one that
// was left by a worker of that format; else one whose worker, of another format, has not been seen
// for `foreign_idle`; else a new one. RESOURCE_EXHAUSTED when all are taken.
absl::StatusOr<WriterClaim> ClaimWriter(StoreFiles& files, const std::string& directory,
                                        uint64_t format, Duration foreign_idle);

// NOT_FOUND when somebody has removed the claim's lock file: the number may be another's by now.
absl::Status CheckClaim(const WriterClaim& claim, const std::string& directory);

// Whether a running worker has the number. Takes nothing away from it.
bool IsHeld(const std::string& directory, uint32_t writer);

// Says that the claim's worker is alive, to those who may take over its number some day.
void RefreshClaim(const WriterClaim& claim);

}  // namespace penstock
