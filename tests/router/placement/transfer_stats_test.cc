#include "router/placement/transfer_stats.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

namespace penstock {
namespace {

using namespace std::chrono_literals;

v1::HandoffDone Done(uint64_t bytes) {
  v1::HandoffDone done;
  done.set_kv_bytes(bytes);
  done.set_exposed_ms(2.5);
  done.set_transport("tcp");
  return done;
}

TEST(TransferStats, CountsWhatWentOverALinkAndWhatIsUnderWay) {
  ManualClock clock;
  TransferStats stats(clock);
  auto first = stats.Open(TransferKind::kHandoff, "p:1", "d:1");
  auto second = stats.Open(TransferKind::kHandoff, "p:1", "d:1");
  first->OnDone(Done(1000));
  first.reset();
  const auto links = stats.Latest(10);
  ASSERT_EQ(links.size(), 1u);
  EXPECT_EQ(links[0].from, "p:1");
  EXPECT_EQ(links[0].to, "d:1");
  EXPECT_EQ(links[0].open, 1u);
  EXPECT_EQ(links[0].done, 1u);
  EXPECT_EQ(links[0].bytes, 1000u);
  EXPECT_EQ(links[0].transport, "tcp");
  second.reset();  // failed: nothing went over
  EXPECT_EQ(stats.Latest(10)[0].open, 0u);
  EXPECT_EQ(stats.Latest(10)[0].done, 1u);
}

TEST(TransferStats, KindsAndDirectionsAreLinksOfTheirOwnTheLatestFirst) {
  ManualClock clock;
  TransferStats stats(clock);
  stats.OnPrefixRead("d:1", "p:1", 10);
  clock.Advance(1s);
  stats.Open(TransferKind::kMove, "d:1", "d:2");
  clock.Advance(1s);
  stats.Open(TransferKind::kHandoff, "p:1", "d:1");
  const auto links = stats.Latest(2);
  ASSERT_EQ(links.size(), 2u);
  EXPECT_EQ(links[0].kind, TransferKind::kHandoff);
  EXPECT_EQ(links[1].kind, TransferKind::kMove);
}

TEST(TransferStats, TheIdleLinkThatWasUsedLongestAgoMakesRoom) {
  ManualClock clock;
  TransferStats stats(clock);
  const auto open = stats.Open(TransferKind::kHandoff, "p:old", "d:old");
  for (size_t i = 0; i < 2 * TransferStats::kLinksMax; ++i) {
    clock.Advance(1ms);
    stats.OnPrefixRead(fmt::format("d:{}", i), "p:1", 1);
  }
  const auto links = stats.Latest(4 * TransferStats::kLinksMax);
  EXPECT_EQ(links.size(), TransferStats::kLinksMax);
  EXPECT_EQ(links.front().from, fmt::format("d:{}", 2 * TransferStats::kLinksMax - 1));
  EXPECT_EQ(links.back().from, "p:old") << "what is under way local_prefill";
}

TEST(TransferStats, TransfersEndOnAnyThread) {
  ManualClock clock;
  TransferStats stats(clock);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        stats.Open(TransferKind::kHandoff, "p:1", fmt::format("d:{}", i % 8))->OnDone(Done(1));
        stats.Latest(3);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t bytes = 0;
  for (const auto& link : stats.Latest(100)) bytes += link.bytes;
  EXPECT_EQ(bytes, 800u);
}

}  // namespace
}  // namespace penstock
