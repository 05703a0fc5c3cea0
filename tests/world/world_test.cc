// Clusters of the real programs, each from a seed. WORLD_SEED=n runs one world alone, WORLD_SEEDS=n
// that many.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

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

// Two and two workers, on hosts 0 to 3, and the router on host 4.
struct OneKind {
  const char* name;
  std::vector<Fault> faults;
};

std::vector<OneKind> Kinds() {
  using std::chrono::hours;
  using std::chrono::milliseconds;
  constexpr Duration kAt = milliseconds(700);
  constexpr Duration kLasts = milliseconds(6000);
  const auto jump = [&](int host, Duration by) {
    return Fault{.kind = FaultKind::kClockJump,
                 .at = kAt,
                 .a = std::min(host, 3),
                 .b = host,
                 .amount = static_cast<int64_t>(Milliseconds(by))};
  };
  return {
      {"PartitionOfAPair",
       {{.kind = FaultKind::kPartition, .at = kAt, .lasts = kLasts, .a = 0, .b = 2}}},
      {"OneWayFromPrefill",
       {{.kind = FaultKind::kPartitionOneWay, .at = kAt, .lasts = kLasts, .a = 0, .b = 2}}},
      {"OneWayToPrefill",
       {{.kind = FaultKind::kPartitionOneWay, .at = kAt, .lasts = kLasts, .a = 2, .b = 0}}},
      {"HostCutOff",
       {{.kind = FaultKind::kPartition, .at = kAt, .lasts = kLasts, .a = 2, .b = 0},
        {.kind = FaultKind::kPartition, .at = kAt, .lasts = kLasts, .a = 2, .b = 1},
        {.kind = FaultKind::kPartition, .at = kAt, .lasts = kLasts, .a = 2, .b = 4}}},
      {"Latency", {{.kind = FaultKind::kLatency, .at = kAt, .lasts = kLasts, .amount = 200}}},
      {"Stopped", {{.kind = FaultKind::kPause, .at = kAt, .lasts = kLasts, .a = 3}}},
      {"ClocksForward",
       {jump(0, hours(1)), jump(1, hours(1)), jump(2, hours(1)), jump(3, hours(1)),
        jump(4, hours(1))}},
      {"ClocksBackward",
       {jump(0, -hours(1)), jump(2, -hours(1)), jump(4, -hours(1)), jump(4, -hours(1))}},
      {"UnlistedWorker", {{.kind = FaultKind::kListing, .at = kAt, .lasts = kLasts, .a = 1}}},
      {"ResolverFails",
       {{.kind = FaultKind::kListing, .at = kAt, .lasts = kLasts, .a = 1, .amount = 4}}},
  };
}

class WorldFaultTest : public testing::TestWithParam<OneKind> {};

// Where others can do the work, no request fails.
TEST_P(WorldFaultTest, FailsNoRequest) {
  for (const uint64_t seed : {11, 12, 13}) {
    SCOPED_TRACE(seed);
    Plan plan = MakePlan(seed, {.requests = 100, .faults = 0, .hurried = false});
    plan.prefill_workers = plan.decode_workers = 2;
    plan.faults = GetParam().faults;
    const Outcome outcome = RunInChild(plan);
    EXPECT_EQ(outcome.failure, "");
    EXPECT_EQ(outcome.totals.failed, 0) << outcome.refused;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, WorldFaultTest, testing::ValuesIn(Kinds()),
                         [](const auto& kind) { return kind.param.name; });

// As many requests in a second as asked for.
Totals UnderLoad(int requests) {
  Plan plan = MakePlan(5, {.requests = requests, .faults = 0, .hurried = false});
  plan.prefill_workers = plan.decode_workers = 2;
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    plan.requests[i].at = std::chrono::milliseconds(500) +
                          std::chrono::milliseconds(1000) * static_cast<int64_t>(i) / requests;
  }
  const Outcome outcome = RunInChild(plan);
  EXPECT_EQ(outcome.failure, "");  // The probes behind it are answered at once.
  std::istringstream refused(outcome.refused);
  for (std::string line; std::getline(refused, line);) {
    EXPECT_NE(line.find("RESOURCE_EXHAUSTED"), std::string::npos) << line;
    // The door's two words: it waited in vain, or too many waited already.
    EXPECT_TRUE(line.ends_with(" overloaded") || line.ends_with(" queue_full")) << line;
  }
  return outcome.totals;
}

// What is too much is refused, and costs those that are served nothing.
TEST(WorldTest, ServesAsManyWhenFarMoreAsk) {
  const Totals half = UnderLoad(300);
  const Totals much = UnderLoad(3000);
  EXPECT_GT(much.failed, 0) << "not too much";
  EXPECT_GE(much.ok, half.ok * 9 / 10);
  std::puts((Summary(half) + "\n" + Summary(much)).c_str());
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
