#include "kvstore/codec/link_rate.h"

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
    rate.OnEnded(At(10.0 * i + 0.010), {.bytes = 1 << 20});
    rate.OnEnded(At(10.0 * i + 0.020), {.bytes = 1 << 20});
  }
  ASSERT_TRUE(rate.bytes_per_s().has_value());
  EXPECT_NEAR(*rate.bytes_per_s(), 100 * kMiB, 1 * kMiB);
}

// A burst of one Put each.
void Transfer(LinkRate& rate, double& now, int bursts, double seconds, size_t bytes) {
  for (int i = 0; i < bursts; ++i, now += 1) {
    rate.OnPut(At(now));
    rate.OnEnded(At(now + seconds), {.bytes = bytes});
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
    rate.OnEnded(At(now), {.bytes = 1 << 20});
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

TEST(LinkRate, OfAShortBurstMuchIsLatency) {
  LinkRate rate;
  double now = 0;
  EXPECT_TRUE(rate.at_least());
  Transfer(rate, now, 5, 0.001, 100 << 10);
  EXPECT_NEAR(*rate.bytes_per_s() / 1e6, 102.4, 1);
  EXPECT_TRUE(rate.at_least());
  Transfer(rate, now, 1, 0.005, 1 << 20);
  Transfer(rate, now, 5, 0.001, 100 << 10);
  EXPECT_NEAR(*rate.bytes_per_s() / 1e6, 209.7, 1) << "is not taken back by what says no more";
  EXPECT_TRUE(rate.at_least());
  Transfer(rate, now, 4, 0.004, 200 << 10);
  EXPECT_NEAR(*rate.bytes_per_s() / 1e6, 51.2, 1);
  EXPECT_FALSE(rate.at_least());
}

TEST(LinkRate, WhatTheReceiverDidIsNotTheLinks) {
  LinkRate rate;
  rate.OnPut(At(0));
  rate.OnEnded(At(0.010), {.bytes = 1 << 20, .handling = std::chrono::milliseconds(5)});
  EXPECT_NEAR(*rate.bytes_per_s(), 200 * kMiB, 1 * kMiB);
  rate.OnPut(At(1));
  // That cannot be.
  rate.OnEnded(At(1.010), {.bytes = 1 << 20, .handling = std::chrono::seconds(5)});
  EXPECT_NEAR(*rate.bytes_per_s(), 400 * kMiB, 1 * kMiB);
}

// Four Puts of 1 MiB, one after the other as each is made, of which two are under way at a time.
void SendFour(LinkRate& rate, double start, double every, const LinkRate::Sent& each) {
  for (int i = 0; i < 5; ++i) {
    if (i < 4) rate.OnPut(At(start + i * every));
    if (i > 0) rate.OnEnded(At(start + (i + 0.5) * every), each);
  }
}

TEST(LinkRate, WhereAnEndIsBusyTheLinkIsNoSlower) {
  LinkRate rate;
  const double four =
      4 / 4.5 * kMiB;  // bytes of such a burst by its seconds, once in a second each
  SendFour(rate, 0, 0.010, {.bytes = 1 << 20, .making = std::chrono::milliseconds(1)});
  EXPECT_NEAR(*rate.bytes_per_s(), 100 * four, kMiB);
  for (int i = 1; i < 10; ++i) {  // encoding holds it up, or decoding
    SendFour(rate, i, 0.040, {.bytes = 1 << 20, .making = std::chrono::milliseconds(39)});
    SendFour(rate, i + 0.5, 0.040, {.bytes = 1 << 20, .handling = std::chrono::milliseconds(39)});
  }
  EXPECT_NEAR(*rate.bytes_per_s(), 100 * four, kMiB);
  SendFour(rate, 20, 0.005, {.bytes = 1 << 20, .making = std::chrono::milliseconds(4)});
  EXPECT_NEAR(*rate.bytes_per_s(), 200 * four, kMiB) << "it is at least so fast";
}

TEST(LinkRate, WhatWasUnderWayAtACutIsNotTakenForQuick) {
  LinkRate rate;
  const auto send = [&](double seconds) { rate.OnEnded(At(seconds), {.bytes = 1 << 20}); };
  for (int burst = 0; burst < 4; ++burst) {
    const double start = burst;
    for (int i = 0; i < 9; ++i) rate.OnPut(At(start));
    for (int i = 1; i <= 8; ++i) send(start + 0.010 * i);
    send(start + 0.080001);  // said together with the one before
  }
  EXPECT_NEAR(*rate.bytes_per_s(), 100 * kMiB, kMiB);
}

}  // namespace
}  // namespace penstock
