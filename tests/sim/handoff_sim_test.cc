// Every handoff of a small cluster, from a seed: PENSTOCK_SIM_SEED=n runs one world alone, and
// PENSTOCK_SIM_SEEDS=n as many as that in each test.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/sim/handoff_world.h"

namespace penstock::sim {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 100;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr uint64_t kSeeds = 100;
#else
constexpr uint64_t kSeeds = 1500;
#endif
#else
constexpr uint64_t kSeeds = 1500;
#endif

const HandoffWorld* g_running = nullptr;

// A CHECK of the code under test aborts: the seed must be seen then, too.
void PrintRunningWorld(int) {
  if (g_running != nullptr) std::fputs(g_running->Report().c_str(), stderr);
  std::signal(SIGABRT, SIG_DFL);
}

bool RunWorld(uint64_t seed, WorldTotals* totals) {
  HandoffWorld world(seed);
  g_running = &world;
  const bool right = world.Run();
  if (!right) ADD_FAILURE() << world.Report();
  *totals += world.totals();
  g_running = nullptr;
  return right;
}

// Four tests, so that they run side by side.
class HandoffSimTest : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override { std::signal(SIGABRT, PrintRunningWorld); }
  void TearDown() override { std::signal(SIGABRT, SIG_DFL); }
};

TEST_P(HandoffSimTest, HoldsItsInvariantsFromEverySeed) {
  WorldTotals totals;
  if (const char* alone = std::getenv("PENSTOCK_SIM_SEED")) {
    RunWorld(std::strtoull(alone, nullptr, 10), &totals);
    return;
  }
  const char* more = std::getenv("PENSTOCK_SIM_SEEDS");
  const uint64_t seeds = more != nullptr ? std::strtoull(more, nullptr, 10) : kSeeds;
  for (uint64_t i = 0; i < seeds; ++i) {
    if (!RunWorld(GetParam() * 1'000'000 + i, &totals)) return;
  }
  std::printf(
      "%llu worlds: %lld attempts, %lld committed, %lld failed, %lld requests cancelled, "
      "%lld crashes, %lld partitions, %lld waited for blocks\n",
      static_cast<unsigned long long>(seeds), static_cast<long long>(totals.attempts),
      static_cast<long long>(totals.committed), static_cast<long long>(totals.failed),
      static_cast<long long>(totals.cancelled), static_cast<long long>(totals.crashes),
      static_cast<long long>(totals.partitions), static_cast<long long>(totals.waited));
  // The worlds are not empty: both ends of every story were told.
  EXPECT_GT(totals.committed, static_cast<int64_t>(seeds));
  EXPECT_GT(totals.failed, static_cast<int64_t>(seeds) / 4);
  EXPECT_GT(totals.crashes + totals.partitions, static_cast<int64_t>(seeds) / 4);
}

TEST(HandoffSimReplayTest, TheSameSeedGivesTheSameWorld) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    HandoffWorld first(seed);
    HandoffWorld second(seed);
    EXPECT_TRUE(first.Run()) << first.Report();
    EXPECT_TRUE(second.Run()) << second.Report();
    EXPECT_EQ(first.history_hash(), second.history_hash()) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, HandoffSimTest, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace penstock::sim
