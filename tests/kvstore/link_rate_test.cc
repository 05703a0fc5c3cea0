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

// A burst of one Put each.
void Transfer(LinkRate& rate, double& now, int bursts, double seconds, size_t bytes) {
  for (int i = 0; i < bursts; ++i, now += 1) {
    rate.OnPut(At(now));
    rate.OnEnded(At(now + seconds), bytes);
  }
}

TEST(LinkRate, FollowsALinkThatGetsSlower) {
  LinkRate rate;
  double now = 0;
  Transfer(rate, now, 64, 0.001, 1 << 20);
  EXPECT_NEAR(*rate.bytes_per_s(), 1000 * kMiB, 1 * kMiB);
  Transfer(rate, now, 3, 0.1, 1 << 20);
  EXPECT_NEAR(*rate.bytes_per_s(), 1000 * kMiB, 1 * kMiB) << "perhaps a disturbance";
  Transfer(rate, now, 1, 0.1, 1 << 20);
  EXPECT_NEAR(*rate.bytes_per_s(), 10 * kMiB, 0.1 * kMiB);
  Transfer(rate, now, 1, 0.001, 1 << 20);
  EXPECT_NEAR(*rate.bytes_per_s(), 1000 * kMiB, 1 * kMiB) << "at once";
}

TEST(LinkRate, FollowsAChangeWithinALongBurst) {
  LinkRate rate;
  rate.OnPut(At(0));
  double now = 0;
  for (int i = 0; i < 160; ++i) {  // always one more under way; slower from the 64th on
    rate.OnPut(At(now));
    now += i < 64 ? 0.001 : 0.1;
    rate.OnEnded(At(now), 1 << 20);
  }
  EXPECT_NEAR(*rate.bytes_per_s(), 10 * kMiB, 0.1 * kMiB);
}

TEST(LinkRate, SmallAndFailedBurstsSayNothing) {
  LinkRate rate;
  double now = 0;
  Transfer(rate, now, 10, 0.01, 4096);
  Transfer(rate, now, 10, 0.01, 0);
  EXPECT_FALSE(rate.bytes_per_s().has_value());
  Transfer(rate, now, 1, 0.01, 1 << 20);
  Transfer(rate, now, 10, 0.01, 4096);
  EXPECT_NEAR(*rate.bytes_per_s(), 100 * kMiB, 1 * kMiB);
}

TEST(LinkRate, BurstsOfMiddlingSizeCountTogether) {
  LinkRate rate;
  double now = 0;
  Transfer(rate, now, 2, 0.001, 100 << 10);
  EXPECT_FALSE(rate.bytes_per_s().has_value());
  Transfer(rate, now, 1, 0.001, 100 << 10);
  EXPECT_NEAR(*rate.bytes_per_s() / 1e6, 102.4, 1);
}

TEST(LinkRate, WhatTheReceiverDidIsNotTheLinks) {
  LinkRate rate;
  rate.OnPut(At(0));
  rate.OnEnded(At(0.010), 1 << 20, std::chrono::milliseconds(5));
  EXPECT_NEAR(*rate.bytes_per_s(), 200 * kMiB, 1 * kMiB);
  rate.OnPut(At(1));
  rate.OnEnded(At(1.010), 1 << 20, std::chrono::seconds(5));  // that cannot be
  EXPECT_NEAR(*rate.bytes_per_s(), 400 * kMiB, 1 * kMiB);
}

}  // namespace
}  // namespace penstock
