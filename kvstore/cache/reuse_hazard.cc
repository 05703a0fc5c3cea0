#include "kvstore/cache/reuse_hazard.h"

#include <algorithm>

namespace penstock {
namespace {

// Lower bounds of the age buckets, in seconds. The last bucket has no upper bound.
constexpr std::array<double, 20> kBucketBegin = {
    0, 1, 4, 7, 13, 25, 40, 60, 90, 130, 180, 250, 350, 500, 700, 1000, 1400, 2000, 2800, 4000};
constexpr double kLastBucketWidth_s = 4000;
constexpr int kAccessesPerLearning = 100;
constexpr double kFading = 0.98;
// Worth before anything is learnt: blocks that were used again are worth more.
constexpr double kWorthOfOneUse = 1e-3, kWorthOfMore = 1e-2;
constexpr double kMin = 1e-9;

double Width(size_t bucket) {
  return bucket + 1 < kBucketBegin.size() ? kBucketBegin[bucket + 1] - kBucketBegin[bucket]
                                          : kLastBucketWidth_s;
}

}  // namespace

int ReuseHazard::ClassOf(uint32_t uses) {
  return static_cast<int>(std::clamp<uint32_t>(uses, 1, kClasses)) - 1;
}

int ReuseHazard::BucketOf(double age_s) {
  const auto after = std::upper_bound(kBucketBegin.begin(), kBucketBegin.end(), age_s);
  return std::max(0, static_cast<int>(after - kBucketBegin.begin()) - 1);
}

void ReuseHazard::CountAccess() {
  if (++accesses_ < kAccessesPerLearning) return;
  accesses_ = 0;
  for (Class& one : classes_) {
    Learn(one);
    one.uses *= kFading;
    for (double& reuses : one.reuses) reuses *= kFading;
  }
}

void ReuseHazard::ObserveUse(int to_class, int64_t blocks) {
  classes_[to_class].uses += static_cast<double>(blocks);
}

void ReuseHazard::ObserveReuse(int from_class, double age_s, int64_t blocks) {
  classes_[from_class].reuses[BucketOf(age_s)] += static_cast<double>(blocks);
}

double ReuseHazard::Worth(int of_class, double age_s) const {
  const Class& one = classes_[of_class];
  if (!one.known) return of_class == 0 ? kWorthOfOneUse : kWorthOfMore;
  return one.worth[BucketOf(age_s)];
}

// Life-table estimate of one class. The Gittins index of an age (Gittins 1979, "Bandit processes
// and dynamic allocation indices") is the maximum, over all ages at which keeping may stop, of
// expected reuses divided by expected seconds of occupied room.
void ReuseHazard::Learn(Class& one) const {
  if (one.uses <= 0) return;
  std::array<double, kBuckets> alive{};  // blocks not reused before the bucket begins
  double left = one.uses;
  for (int bucket = 0; bucket < kBuckets; ++bucket) {
    alive[bucket] = std::max(left, kMin);
    left -= one.reuses[bucket];
  }
  for (int from = 0; from < kBuckets; ++from) {
    double uses = 0, seconds = 0, best = 0;
    for (int to = from; to < kBuckets; ++to) {
      uses += one.reuses[to];
      seconds += std::max(alive[to] - one.reuses[to] / 2, kMin) * Width(to);
      best = std::max(best, uses / seconds);
    }
    one.worth[from] = best;
  }
  one.known = true;
}

}  // namespace penstock
