#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "kvstore/names/block_hash.h"

namespace penstock {

// One request's use of the cache: all that it finds and all that it brings are one access.
struct CacheAccess {
  uint64_t number = 0;  // counts from 1
  TimePoint at{};
};

// What a policy keeps of blocks that have always been used together.
struct CacheRunStats {
  uint64_t born = 0;     // the access that brought it
  uint64_t used = 0;     // the last access
  TimePoint used_at{};   // when that was
  uint32_t uses = 0;     // accesses; the cost policy counts those before an eviction, too
  uint64_t turn = 0;     // place in s3-fifo's queues
  bool in_main = false;  // which of them
  uint32_t recent = 0;   // s3-fifo's counter, 0 to 3

  bool operator==(const CacheRunStats&) const = default;
};

// A run of blocks, each the parent of the next, as policies see it. A run's tail goes first.
struct CacheRun {
  CacheRunStats stats;
  int64_t depth = 0;  // blocks from the namespace's root to the end of the run
  int64_t blocks = 0;
  bool evictable = false;  // nothing hangs from it, and it is not pinned
};

// Which leaf of the tree goes next. One thread at a time.
class CachePolicy {
 public:
  virtual ~CachePolicy() = default;

  // What a block starts with that this access brings.
  virtual CacheRunStats Admit(const BlockId& id, const CacheAccess& access) = 0;
  // `run`, which is not listed, is used once more.
  virtual void Use(CacheRun& run, const CacheAccess& access) = 0;
  // Takes a run into account, and out of it before anything of it changes.
  virtual void List(CacheRun& run) = 0;
  virtual void Unlist(CacheRun& run) = 0;
  // `ids`, the tail of `run`, which is not listed, are evicted.
  virtual void OnEvicted(const CacheRun& run, std::span<const BlockId> ids) = 0;
  // The evictable run to lose its tail first; nullptr when no run is evictable.
  virtual CacheRun* Victim(TimePoint now) = 0;
};

inline constexpr std::string_view kCachePolicies = "cost,lru,lfu,fifo,s3-fifo";

// A policy by its name, for a cache of `capacity` blocks. INVALID_ARGUMENT names those there are.
//   lru      the run that was used longest ago
//   lfu      the run that was used least often since it came, and among those longest ago
//   fifo     the run that came first
//   s3-fifo  a small queue (10 %) for what came, a main one for what was used again, and a memory
//            of what left the small one (Yang et al., SOSP 2023)
//   cost     the run that is least likely to be used again for the room and time it will take: see
//            ReuseHazard
absl::StatusOr<std::unique_ptr<CachePolicy>> MakeCachePolicy(std::string_view name,
                                                             int64_t capacity);

}  // namespace penstock
