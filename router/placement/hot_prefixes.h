#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvstore/names/block_hash.h"

namespace penstock {

// A prefix that requests found cached. It is told by its length, never by its tokens.
struct HotPrefix {
  std::string tenant;  // empty: nobody in particular
  BlockId last;        // the last block's id, which names all before it
  uint32_t blocks = 0;
  uint32_t tokens = 0;
  uint64_t hits = 0;       // requests that began with it, since it is watched
  double recent_hits = 0;  // of about the last kMemory
};

// Which prefixes most requests begin with. A prefix is watched from the first request that found so
// much of its prompt cached and no more: where prompts part ways. Bounded: what was hit least of
// late makes room. Any thread.
class HotPrefixes {
 public:
  static constexpr size_t kWatchedMax = 512;
  static constexpr Duration kMemory = std::chrono::minutes(5);

  struct Request {
    const std::string& tenant;     // empty: nobody in particular
    std::span<const BlockId> ids;  // of its full blocks
    uint32_t blocks_found = 0;     // leading ones, that some worker has
    uint32_t block_tokens = 0;
  };
  void OnPlaced(const Request& request, TimePoint now) EXCLUDES(mutex_);

  // At most `most`, those with most recent hits first. Of one tenant, or of all (nullopt). A prefix
  // is left out where a longer one of those shown has nearly all of its hits.
  std::vector<HotPrefix> Hottest(const std::optional<std::string>& tenant, size_t max,
                                 TimePoint now) const EXCLUDES(mutex_);

 private:
  struct Watched {
    HotPrefix prefix;
    TimePoint hit_at;  // when recent_hits was right
    double rank = 0;   // orders all by recent_hits, whenever that is asked
    BlockId inside{};  // the last block of the next shorter one that was watched; zero: none
  };
  static double RecentAt(const Watched& watched, TimePoint now);
  static void Hit(Watched& watched, TimePoint now);
  void Watch(const Request& request, const BlockId& inside, TimePoint now) REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<Watched> watched_ GUARDED_BY(mutex_);
};

}  // namespace penstock
