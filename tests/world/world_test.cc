// Clusters of the real programs, each from a seed. WORLD_SEED=n runs one world alone, WORLD_SEEDS=n
// that many.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/world/harness.h"

namespace penstock::world {
namespace {

uint64_t Setting(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(WorldTest, EqualSeedsMakeEqualWorlds) {
  const Plan plan = MakePlan(7, {.requests = 40, .faults = 6});
  const Outcome first = RunInChild(plan);
  const Outcome second = RunInChild(plan);
  EXPECT_EQ(first.failure, "");
  EXPECT_EQ(first.history, second.history);
}

Totals RunPlanned(int seeds, int faults, const std::vector<FaultKind>& kinds) {
  Totals totals;
  for (int seed = 1; seed <= seeds; ++seed) {
    const Outcome outcome =
        RunInChild(MakePlan(static_cast<uint64_t>(seed),
                            {.requests = 100, .faults = faults, .kinds = kinds, .hurried = false}));
    EXPECT_EQ(outcome.failure, "") << "seed " << seed;
    EXPECT_EQ(outcome.totals.failed, 0) << "seed " << seed << "\n" << outcome.refused;
    totals += outcome.totals;
  }
  std::puts(Summary(totals).c_str());
  return totals;
}

// Beyond the answers: the prefix cache, placement and the tiers do their work.
TEST(WorldTest, ServesEveryRequestWithoutFaults) {
  const Totals totals = RunPlanned(12, 0, {});
  EXPECT_LE(totals.migrations,
            20);  // A worker may have evicted the prefix that the router expects.
  EXPECT_GE(totals.cached_tokens, totals.prompt_tokens / 2);
  EXPECT_LE(Milliseconds(totals.first_tokens) / static_cast<double>(totals.ok), 6);
  EXPECT_GE(CountOf(totals, "penstock_kv_peer_reads_total"), 20);
  EXPECT_GE(CountOf(totals, "penstock_kv_restores_total"), 100);
  EXPECT_EQ(CountOf(totals, "penstock_kv_nvme_corrupt_total"), 0);
}

// Drains and role changes are announced: clients do not notice them.
TEST(WorldTest, LosesNoRequestToPlannedOperations) {
  const Totals totals = RunPlanned(
      20, 4, {FaultKind::kDrain, FaultKind::kDrain, FaultKind::kDrain, FaultKind::kTurn});
  EXPECT_GE(CountOf(totals, "penstock_sequences_moved_total"), 5);
  EXPECT_LE(totals.migrations, 60);
}

// One worker of several fails, or comes back with another checkpoint.
TEST(WorldTest, LosesNoRequestToOneWorker) {
  RunPlanned(40, 1, {FaultKind::kCrash, FaultKind::kCrashEmpty, FaultKind::kCrashTwin});
}

// Plans that have found a fault of the product.
TEST(WorldTest, AnswersOfOneTokenDoNotFailForTheEndOfTheirHandoff) {
  const Outcome outcome = RunInChild(MakePlan(42, {.requests = 100, .faults = 8}));
  EXPECT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.refused.find("request-87:"), std::string::npos) << outcome.refused;
}

// The oracle itself: KV that no part of the cluster has damaged is seen, and the fault that did it
// is what shrinking leaves.
TEST(WorldTest, SeesOneWrongBitAndNamesItsCause) {
  Plan plan = MakePlan(3, {.requests = 60, .faults = 4});
  plan.faults.push_back({.kind = FaultKind::kPoison, .at = plan.requests[30].at});
  const Outcome outcome = RunInChild(plan);
  EXPECT_NE(outcome.failure.find("wrong token"), std::string::npos) << outcome.failure;
  const Plan least = Shrink(plan);
  ASSERT_EQ(least.faults.size(), 1u);
  EXPECT_EQ(least.faults[0].kind, FaultKind::kPoison);
  EXPECT_LE(least.requests.size(), 8u);
}

TEST(WorldTest, HoldsItsInvariantsFromEverySeed) {
  const uint64_t first = Setting("WORLD_SEED", 1);
  const uint64_t seeds = std::getenv("WORLD_SEED") != nullptr ? 1 : Setting("WORLD_SEEDS", 100);
  Totals totals;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const Plan plan = MakePlan(seed, {.requests = 100, .faults = 8});
    const Outcome outcome = RunInChild(plan);
    totals += outcome.totals;
    if (std::getenv("WORLD_VERBOSE") != nullptr) std::puts(outcome.refused.c_str());
    if (!outcome.failure.empty()) {
      ADD_FAILURE() << ReportOf(plan, outcome, Setting("WORLD_SHRINK", 1) != 0);
    }
  }
  std::puts(Summary(totals).c_str());
}

}  // namespace
}  // namespace penstock::world
