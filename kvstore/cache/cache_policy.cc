#include "kvstore/cache/cache_policy.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "base/check.h"
#include "kvstore/cache/evicted_blocks.h"
#include "kvstore/cache/reuse_hazard.h"

namespace penstock {
namespace {

// The sort key of eviction: the smallest goes first. Among equals the deeper run goes first, so
// that a run is never evicted before the runs below it.
using Rank = std::tuple<uint64_t, uint64_t, int64_t, CacheRun*>;

CacheRunStats NewStats(const CacheAccess& access) {
  return {.tenant = access.tenant,
          .born = access.number,
          .used = access.number,
          .used_at = access.at,
          .uses = 1};
}

void Touch(CacheRun& run, const CacheAccess& access) {
  run.stats.used = access.number;
  run.stats.used_at = access.at;
  ++run.stats.uses;
}

// Base of the policies that evict the evictable run with the smallest rank (LRU, LFU, FIFO).
class RankedPolicy : public CachePolicy {
 public:
  CacheRunStats Admit(const BlockId&, const CacheAccess& access) override {
    return NewStats(access);
  }
  void Use(CacheRun& run, const CacheAccess& access) override { Touch(run, access); }
  void List(CacheRun& run) override {
    if (run.evictable) ranks_.insert(RankOf(run));
  }
  void Unlist(CacheRun& run) override {
    if (run.evictable) PENSTOCK_CHECK_EQ(ranks_.erase(RankOf(run)), 1u);
  }
  void OnEvicted(const CacheRun&, std::span<const BlockId>) override {}
  CacheRun* Victim(TimePoint) override {
    return ranks_.empty() ? nullptr : std::get<CacheRun*>(*ranks_.begin());
  }

 private:
  virtual Rank RankOf(CacheRun& run) const = 0;
  std::set<Rank> ranks_;
};

// Least recently used: the rank is the number of the last access.
class Lru final : public RankedPolicy {
  Rank RankOf(CacheRun& run) const override { return {0, run.stats.used, -run.depth, &run}; }
};

// Least frequently used, counted since the run was stored; ties are broken by LRU.
class Lfu final : public RankedPolicy {
  Rank RankOf(CacheRun& run) const override {
    return {run.stats.uses, run.stats.used, -run.depth, &run};
  }
};

// First in, first out: the rank is the access that stored the run.
class Fifo final : public RankedPolicy {
  Rank RankOf(CacheRun& run) const override { return {0, run.stats.born, -run.depth, &run}; }
};

// S3-FIFO (Yang, Zhang, Qiu, Yue, Vigfusson: "FIFO queues are all you need for cache eviction",
// SOSP 2023). New runs enter the small queue, which gets 10 % of the capacity. A run at its head
// that was reused more than once moves to the main queue; otherwise it is evicted and its ids enter
// the ghost queue. A block whose id is in the ghost queue enters the main queue directly. The main
// queue is FIFO with reinsertion (CLOCK with a counter from 0 to 3).
// Difference from the paper: only leaves of the radix tree can be evicted, so the queues hold the
// runs that are evictable or due for reinsertion.
class S3Fifo final : public CachePolicy {
 public:
  explicit S3Fifo(int64_t capacity)
      : small_share_(std::max<int64_t>(1, capacity / 10)),
        evicted_(static_cast<size_t>(std::max<int64_t>(1, capacity - small_share_))) {}

  CacheRunStats Admit(const BlockId& id, const CacheAccess& access) override {
    CacheRunStats stats = NewStats(access);
    stats.turn = TurnOf(access);
    stats.in_main = evicted_.Take(id).has_value();
    return stats;
  }
  void Use(CacheRun& run, const CacheAccess& access) override {
    Touch(run, access);
    run.stats.recent = std::min(run.stats.recent + 1, kRecentMax);
  }
  void List(CacheRun& run) override {
    if (run.evictable || IsSpared(run)) QueueOf(run).insert(RankOf(run));
    if (!run.stats.in_main) small_blocks_ += run.blocks;
    evictable_ += run.evictable ? 1 : 0;
  }
  void Unlist(CacheRun& run) override {
    QueueOf(run).erase(RankOf(run));
    if (!run.stats.in_main) small_blocks_ -= run.blocks;
    evictable_ -= run.evictable ? 1 : 0;
  }
  void OnEvicted(const CacheRun& run, std::span<const BlockId> ids) override {
    if (run.stats.in_main) return;
    // The tail enters the ghost queue first and is forgotten first, in the same order as in the
    // small queue.
    for (size_t i = ids.size(); i-- > 0;) evicted_.Put(ids[i], {});
  }

  CacheRun* Victim(TimePoint) override {
    if (evictable_ == 0) return nullptr;
    while (true) {
      const bool from_small = !small_.empty() && (small_blocks_ >= small_share_ || main_.empty());
      CacheRun& run = *std::get<CacheRun*>(*(from_small ? small_ : main_).begin());
      if (!IsSpared(run)) return &run;
      Unlist(run);
      run.stats.recent = from_small ? 0 : run.stats.recent - 1;
      run.stats.in_main = true;
      run.stats.turn = ++turns_;
      List(run);
    }
  }

 private:
  static constexpr uint32_t kRecentMax = 3;
  // A run used more often than this moves to the main queue.
  static constexpr uint32_t kUsesForMain = 1;

  uint64_t TurnOf(const CacheAccess& access) {
    if (access.number != access_) {
      access_ = access.number;
      turn_of_access_ = ++turns_;
    }
    return turn_of_access_;
  }
  // The run was used, so it is reinserted into the main queue instead of being evicted.
  static bool IsSpared(const CacheRun& run) {
    return run.stats.recent > (run.stats.in_main ? 0 : kUsesForMain);
  }
  std::set<Rank>& QueueOf(const CacheRun& run) { return run.stats.in_main ? main_ : small_; }
  Rank RankOf(CacheRun& run) const { return {0, run.stats.turn, -run.depth, &run}; }

  const int64_t small_share_;    // blocks
  EvictedBlocks<char> evicted_;  // the ghost queue
  std::set<Rank> small_, main_;
  int64_t small_blocks_ = 0;
  int64_t evictable_ = 0;  // runs
  uint64_t access_ = 0, turn_of_access_ = 0, turns_ = 0;
};

// Ranks blocks by the rate of future uses that their room buys, in the spirit of LHD (Beckmann,
// Chen, Cidon: "LHD: Improving Cache Hit Rate by Maximizing Hit Density", NSDI 2018): ReuseHazard
// learns, by number of uses, how likely a reuse is at each age. Within one class the longest unused
// run is the candidate, so a victim costs one comparison for each class. Evicted blocks are
// remembered, because reuses after an eviction are observations too.
class Cost final : public CachePolicy {
 public:
  explicit Cost(int64_t capacity) : evicted_(Remembered(capacity)) {}

  CacheRunStats Admit(const BlockId& id, const CacheAccess& access) override {
    Count(access);
    CacheRunStats stats = NewStats(access);
    if (const auto known = evicted_.Take(id)) {
      hazard_.ObserveReuse(ReuseHazard::ClassOf(known->uses), Age(known->used_at, access.at), 1);
      stats.uses = known->uses + 1;
    }
    hazard_.ObserveUse(ReuseHazard::ClassOf(stats.uses), 1);
    return stats;
  }
  void Use(CacheRun& run, const CacheAccess& access) override {
    Count(access);
    hazard_.ObserveReuse(ClassOf(run), Age(run.stats.used_at, access.at), run.blocks);
    Touch(run, access);
    hazard_.ObserveUse(ClassOf(run), run.blocks);
  }
  void List(CacheRun& run) override {
    if (run.evictable) ranks_[ClassOf(run)].insert(RankOf(run));
  }
  void Unlist(CacheRun& run) override {
    if (run.evictable) PENSTOCK_CHECK_EQ(ranks_[ClassOf(run)].erase(RankOf(run)), 1u);
  }
  void OnEvicted(const CacheRun& run, std::span<const BlockId> ids) override {
    for (const BlockId& id : ids) {
      evicted_.Put(id, {.used_at = run.stats.used_at, .uses = run.stats.uses});
    }
  }
  CacheRun* Victim(TimePoint now) override {
    CacheRun* min = nullptr;
    double worth_min = 0;
    for (const auto& ranks : ranks_) {
      if (ranks.empty()) continue;
      CacheRun* oldest = std::get<CacheRun*>(*ranks.begin());
      const double worth = hazard_.Worth(ClassOf(*oldest), Age(oldest->stats.used_at, now));
      if (min != nullptr && worth >= worth_min) continue;
      min = oldest;
      worth_min = worth;
    }
    return min;
  }

 private:
  struct Known {
    TimePoint used_at{};
    uint32_t uses = 0;
  };
  // A small cache must remember more of its capacities, since its blocks are evicted sooner.
  static size_t Remembered(int64_t capacity) {
    constexpr int64_t kEnough = int64_t{1} << 18;  // 11 MiB when full
    return static_cast<size_t>(std::max(std::min(64 * capacity, kEnough), 4 * capacity));
  }

  static int ClassOf(const CacheRun& run) { return ReuseHazard::ClassOf(run.stats.uses); }
  static double Age(TimePoint used_at, TimePoint now) { return Milliseconds(now - used_at) / 1e3; }
  Rank RankOf(CacheRun& run) const { return {0, run.stats.used, -run.depth, &run}; }
  void Count(const CacheAccess& access) {
    if (access.number == access_) return;
    access_ = access.number;
    hazard_.CountAccess();
  }

  ReuseHazard hazard_;
  EvictedBlocks<Known> evicted_;
  std::array<std::set<Rank>, ReuseHazard::kClasses> ranks_;
  uint64_t access_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CachePolicy>> MakeCachePolicy(std::string_view name,
                                                             int64_t capacity) {
  if (name == "cost") return std::make_unique<Cost>(capacity);
  if (name == "lru") return std::make_unique<Lru>();
  if (name == "lfu") return std::make_unique<Lfu>();
  if (name == "fifo") return std::make_unique<Fifo>();
  if (name == "s3-fifo") return std::make_unique<S3Fifo>(capacity);
  return InvalidArgument("cache policy '{}' is unknown; allowed are {}", name, kCachePolicies);
}

}  // namespace penstock
