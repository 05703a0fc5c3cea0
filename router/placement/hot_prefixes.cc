#include "router/placement/hot_prefixes.h"

#include <algorithm>
#include <cmath>

namespace penstock {
namespace {

// The share of a prefix's recent hits from which on a longer prefix represents it.
constexpr double kCoveredShare = 0.8;

}  // namespace

double HotPrefixes::RecentAt(const Watched& watched, TimePoint now) {
  const double memories = Milliseconds(now - watched.hit_at) / Milliseconds(kDecayTime);
  return watched.prefix.recent_hits * std::exp(-std::max(0.0, memories));
}

void HotPrefixes::Hit(Watched& watched, TimePoint now) {
  watched.prefix.recent_hits = RecentAt(watched, now) + 1;
  watched.hit_at = now;
  ++watched.prefix.hits;
  // Forward decay: log(recent_hits) falls by 1 every kDecayTime for all prefixes alike, so adding
  // the time of the hit makes ranks of different times comparable.
  watched.rank = std::log(watched.prefix.recent_hits) +
                 Milliseconds(now.time_since_epoch()) / Milliseconds(kDecayTime);
}

void HotPrefixes::OnPlaced(const Request& request, TimePoint now) {
  const size_t found = std::min<size_t>(request.blocks_found, request.ids.size());
  if (found == 0) return;
  MutexLock lock(mutex_);
  const Watched* longest = nullptr;
  for (Watched& watched : watched_) {
    const uint32_t blocks = watched.prefix.blocks;
    if (blocks > found || request.ids[blocks - 1] != watched.prefix.last) continue;
    Hit(watched, now);
    if (longest == nullptr || blocks > longest->prefix.blocks) longest = &watched;
  }
  if (longest != nullptr && longest->prefix.blocks == found) return;
  Watch(request, longest == nullptr ? BlockId{} : longest->prefix.last, now);
}

void HotPrefixes::Watch(const Request& request, const BlockId& inside, TimePoint now) {
  if (watched_.size() >= kWatchedMax) {
    const auto min =
        std::min_element(watched_.begin(), watched_.end(),
                         [](const Watched& a, const Watched& b) { return a.rank < b.rank; });
    *min = std::move(watched_.back());
    watched_.pop_back();
  }
  const uint32_t blocks =
      std::min<uint32_t>(request.blocks_found, static_cast<uint32_t>(request.ids.size()));
  watched_.push_back({.prefix = {.tenant = request.tenant,
                                 .last = request.ids[blocks - 1],
                                 .blocks = blocks,
                                 .tokens = blocks * request.block_tokens},
                      .inside = inside});
  Hit(watched_.back(), now);
}

std::vector<HotPrefix> HotPrefixes::Hottest(const std::optional<std::string>& tenant, size_t max,
                                            TimePoint now) const {
  std::vector<Watched> seen;
  {
    MutexLock lock(mutex_);
    for (const Watched& watched : watched_) {
      if (tenant && watched.prefix.tenant != *tenant) continue;
      seen.push_back(watched);
      seen.back().prefix.recent_hits = RecentAt(watched, now);
    }
  }
  const auto covered_by_longer = [&](const Watched& shorter) {
    return std::any_of(seen.begin(), seen.end(), [&](const Watched& longer) {
      return longer.inside == shorter.prefix.last &&
             longer.prefix.recent_hits >= kCoveredShare * shorter.prefix.recent_hits;
    });
  };
  std::vector<HotPrefix> hottest;
  for (const Watched& watched : seen) {
    if (!covered_by_longer(watched)) hottest.push_back(watched.prefix);
  }
  std::sort(hottest.begin(), hottest.end(), [](const HotPrefix& a, const HotPrefix& b) {
    return std::pair(a.recent_hits, a.tokens) > std::pair(b.recent_hits, b.tokens);
  });
  if (hottest.size() > max) hottest.resize(max);
  return hottest;
}

}  // namespace penstock
