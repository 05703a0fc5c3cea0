#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "kvstore/names/block_hash.h"

namespace penstock {

// One request's use of the cache. Everything that it finds and stores counts as one access.
struct CacheAccess {
  uint64_t number = 0;  // 1, 2, 3, ... within one cache
  TimePoint at{};
  uint64_t tenant = 0;  // whose blocks it stores, see TenantNumber
};

// A policy's statistics of a run, whose blocks have always been used together.
struct CacheRunStats {
  uint64_t tenant = 0;   // whose request stored it
  uint64_t born = 0;     // number of the access that stored it
  uint64_t used = 0;     // number of the last access
  TimePoint used_at{};   // time of the last access
  uint32_t uses = 0;     // number of accesses; the cost policy includes those before an eviction
  uint64_t turn = 0;     // s3-fifo: place in its queue
  bool in_main = false;  // s3-fifo: in the main queue, not in the small one
  uint32_t recent = 0;   // s3-fifo: use counter, 0 to 3

  bool operator==(const CacheRunStats&) const = default;
};

// A run of blocks, each the parent of the next, as policies see it. Eviction takes blocks from the
// run's end.
struct CacheRun {
  CacheRunStats stats;
  int64_t depth = 0;  // blocks from the namespace's root to the end of the run
  int64_t blocks = 0;
  bool evictable = false;  // it has no child runs and is not pinned
};

// Chooses the leaf of the radix tree to evict next. Pure: no clock and no I/O. One thread at a
// time. The cache owns the runs and keeps them alive while they are listed.
class CachePolicy {
 public:
  virtual ~CachePolicy() = default;

  // The statistics of a new block that `access` stores.
  virtual CacheRunStats Admit(const BlockId& id, const CacheAccess& access) = 0;
  // Counts one more use of `run`, which must not be listed.
  virtual void Use(CacheRun& run, const CacheAccess& access) = 0;
  // List makes a run known to the policy. Unlist removes it, and must be called before the run
  // changes.
  virtual void List(CacheRun& run) = 0;
  virtual void Unlist(CacheRun& run) = 0;
  // The blocks `ids`, the end of `run`, were evicted; `run` must not be listed.
  virtual void OnEvicted(const CacheRun& run, std::span<const BlockId> ids) = 0;
  // The evictable run whose end is evicted next; nullptr when no run is evictable.
  virtual CacheRun* Victim(TimePoint now) = 0;
};

inline constexpr std::string_view kCachePolicies = "cost,lru,lfu,fifo,s3-fifo";

// A policy by its name, for a cache of `capacity` blocks. INVALID_ARGUMENT lists the known names.
//   lru      evicts the least recently used run
//   lfu      evicts the run used least often since it was stored; ties are broken by lru
//   fifo     evicts the oldest run
//   s3-fifo  small queue (10 %), main queue and ghost queue (Yang et al., SOSP 2023)
//   cost     evicts the run with the lowest expected uses per second of room: see ReuseHazard
absl::StatusOr<std::unique_ptr<CachePolicy>> MakeCachePolicy(std::string_view name,
                                                             int64_t capacity);

}  // namespace penstock
