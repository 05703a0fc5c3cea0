#include "kvstore/link_rate.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

constexpr double kMiB = 1 << 20;

TimePoint At(double seconds) {
  return TimePoint() + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

TEST(LinkRate, CountsOnlyTheTimeInWhichSomethingIsUnderWay) {
  LinkRate rate;
  EXPECT_FALSE(rate.bytes_per_s().has_value());
  for (int i = 0; i < 8; ++i) {  // two at a time, 2 MiB in 20 ms, and long pauses
    rate.OnPut(At(10.0 * i));
    rate.OnPut(At(10.0 * i + 0.001));
    rate.OnEnded(At(10.0 * i + 0.010), 1 << 20);
    rate.OnEnded(At(10.0 * i + 0.020), 1 << 20);
  }
  ASSERT_TRUE(rate.bytes_per_s().has_value());
  EXPECT_NEAR(*rate.bytes_per_s(), 100 * kMiB, 1 * kMiB);
}

TEST(LinkRate, FollowsAChange) {
  LinkRate rate;
  double now = 0;
  const auto transfer = [&](int slabs, double seconds) {
    for (int i = 0; i < slabs; ++i, now += seconds) {
      rate.OnPut(At(now));
      rate.OnEnded(At(now + seconds), 1 << 20);
    }
  };
  transfer(64, 0.001);
  EXPECT_NEAR(*rate.bytes_per_s(), 1000 * kMiB, 10 * kMiB);
  transfer(48, 0.1);
  EXPECT_LT(*rate.bytes_per_s(), 13 * kMiB);
}

}  // namespace
}  // namespace penstock
