#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvstore/names/block_hash.h"

namespace penstock {

// A prefix that requests found cached. It is described by its length, never by its tokens.
struct HotPrefix {
  std::string tenant;  // empty: no tenants are configured
  BlockId last;        // id of the last block, which identifies the whole prefix
  uint32_t blocks = 0;
  uint32_t tokens = 0;
  uint64_t hits = 0;       // requests that began with the prefix since it is watched
  double recent_hits = 0;  // the same, decayed by 1/e every kDecayTime
};

// Finds the prefixes that most requests begin with. A prefix is watched from the first request
// whose prompt was cached up to exactly its end: that is where prompts diverge. Hits decay
// exponentially (forward decay, Cormode et al., ICDE 2009), and the prefix with the fewest recent
// hits is replaced when kWatchedMax are watched. Any thread.
class HotPrefixes {
 public:
  static constexpr size_t kWatchedMax = 512;
  static constexpr Duration kDecayTime = std::chrono::minutes(5);

  struct Request {
    const std::string& tenant;     // empty: no tenants are configured
    std::span<const BlockId> ids;  // ids of the prompt's full blocks
    uint32_t blocks_found = 0;     // leading blocks that some worker has cached
    uint32_t block_tokens = 0;
  };
  void OnPlaced(const Request& request, TimePoint now) EXCLUDES(mutex_);

  // At most `max` prefixes of one tenant, or of all (nullopt), most recent hits first. A prefix is
  // left out when a longer watched one has at least 80 % of its recent hits.
  std::vector<HotPrefix> Hottest(const std::optional<std::string>& tenant, size_t max,
                                 TimePoint now) const EXCLUDES(mutex_);

 private:
  struct Watched {
    HotPrefix prefix;
    TimePoint hit_at;  // the time for which recent_hits holds
    double rank = 0;   // orders prefixes by recent_hits at any later time, without decaying them
    BlockId inside{};  // last block of the next shorter watched prefix; zero: none
  };
  static double RecentAt(const Watched& watched, TimePoint now);
  static void Hit(Watched& watched, TimePoint now);
  void Watch(const Request& request, const BlockId& inside, TimePoint now) REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<Watched> watched_ GUARDED_BY(mutex_);
};

}  // namespace penstock
