// Clusters of the real programs, each from a seed. WORLD_SEED=n runs that one world of
// HoldsItsInvariantsFromEverySeed, WORLD_SEEDS=m that many from seed n or 1, and WORLD_JOBS=k runs
// k of them at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/world/harness.h"

namespace penstock::world {
namespace {

uint64_t Setting(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// With --gtest_fail_fast the first world that fails ends a test of many worlds, too.
bool EndsEarly() { return testing::Test::HasFailure() && GTEST_FLAG_GET(fail_fast); }

TEST(WorldTest, EqualSeedsMakeEqualWorlds) {
  const Plan plan = MakePlan(7, {.requests = 40, .faults = 6});
  const Outcome first = RunInChild(plan);
  const Outcome second = RunInChild(plan);
  EXPECT_EQ(first.failure, "");
  EXPECT_EQ(first.history, second.history);
}

Totals RunPlanned(int seeds, int faults, const std::vector<FaultKind>& kinds) {
  Totals totals;
  for (int seed = 1; seed <= seeds && !EndsEarly(); ++seed) {
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
  EXPECT_GE(totals.lossy, 20);
}

// Drains and role changes are announced: clients do not notice them.
TEST(WorldTest, LosesNoRequestToPlannedOperations) {
  const Totals totals = RunPlanned(
      20, 4, {FaultKind::kDrain, FaultKind::kDrain, FaultKind::kDrain, FaultKind::kTurn});
  EXPECT_GE(CountOf(totals, "penstock_sequences_moved_total"), 5);
  EXPECT_LE(totals.migrations, 20);
}

// One worker of several fails, or comes back with another checkpoint.
TEST(WorldTest, LosesNoRequestToOneWorker) {
  RunPlanned(40, 1, {FaultKind::kCrash, FaultKind::kCrashEmpty, FaultKind::kCrashTwin});
}

// Many prompts begin with one of eight texts. No worker has pages for all of them, and together
// they have: where a request is placed decides how much it finds.
TEST(WorldTest, KeepsEqualPrefixesOnOneWorker) {
  constexpr size_t kTexts = 8, kTextTokens = 160;
  Plan plan = MakePlan(21, {.requests = 240, .faults = 0, .hurried = false});
  plan.prefill_workers = 4;
  plan.pages = 40;
  plan.slots = 8;
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    RequestPlan& request = plan.requests[i];
    request = {.at = request.at, .max_tokens = 2, .seed = i};
    // A text that is its own, behind one of the eight. The step of three mixes the order.
    request.prompt.assign(kTextTokens, 'a' + static_cast<uint32_t>(i * 3 % kTexts));
    for (size_t n = i; request.prompt.size() < kTextTokens + 40; n /= 2) {
      request.prompt.push_back('a' + static_cast<uint32_t>(n % 26));
    }
  }
  const Outcome outcome = RunInChild(plan);
  EXPECT_EQ(outcome.failure, "");
  const Totals& totals = outcome.totals;
  std::puts(Summary(totals).c_str());
  EXPECT_GE(totals.cached_tokens, totals.prompt_tokens * 72 / 100);
  EXPECT_LE(CountOf(totals, "penstock_kv_restores_total"), 600);  // from host memory and NVMe
  EXPECT_LE(Milliseconds(totals.first_tokens) / static_cast<double>(totals.ok), 8);
}

// One pair of two comes back with another checkpoint, which the router does not serve, not even
// while the other decode worker restarts: requests wait for it.
TEST(WorldTest, ServesOneModelAtATime) {
  using std::chrono::milliseconds;
  Plan plan = MakePlan(11, {.requests = 100, .faults = 0, .hurried = false});
  plan.prefill_workers = plan.decode_workers = 2;
  const auto at = [](FaultKind kind, int worker, milliseconds begin, milliseconds lasts) {
    return Fault{.kind = kind, .at = begin, .lasts = lasts, .a = worker};
  };
  plan.faults = {at(FaultKind::kCrashTwin, 0, milliseconds(600), milliseconds(1500)),
                 at(FaultKind::kCrashTwin, 2, milliseconds(600), milliseconds(1500)),
                 at(FaultKind::kCrash, 3, milliseconds(2900), milliseconds(300))};
  const Outcome outcome = RunInChild(plan);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.totals.failed, 0) << outcome.refused;
}

// The decode worker has sent the rest of an answer and ended the call before the first token, which
// the prefill worker sends, reaches the router.
TEST(WorldTest, AnswersWaitForAFirstTokenThatArrivesLast) {
  using std::chrono::milliseconds;
  constexpr int kPrefillHost = 0, kRouterHost = 2;
  Plan plan = MakePlan(42, {.requests = 200, .faults = 0, .hurried = false});
  plan.prefill_workers = plan.decode_workers = 1;
  for (RequestPlan& request : plan.requests) {
    request.choices = 1;
    request.max_tokens = request.min_tokens = 3;
  }
  for (Duration at{}; at < plan.requests.back().at; at += milliseconds(400)) {
    plan.faults.push_back({.kind = FaultKind::kPartitionOneWay,
                           .at = at,
                           .lasts = milliseconds(200),
                           .a = kPrefillHost,
                           .b = kRouterHost});
  }
  const Outcome outcome = RunInChild(plan);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.totals.failed, 0) << outcome.refused;
  EXPECT_EQ(outcome.totals.migrations, 0);
}

// While no worker is there, nothing but the clock ends the wait for one.
TEST(WorldTest, RequestsEndWhenNoWorkerComesBackInTime) {
  using std::chrono::milliseconds;
  Plan plan = MakePlan(17, {.requests = 40, .faults = 0, .hurried = false});
  plan.prefill_workers = plan.decode_workers = 1;
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    plan.requests[i].at = milliseconds(10000 + 20 * i);
    plan.requests[i].ends_within = milliseconds(2500);  // a router waits 2 s for a worker
  }
  const auto crash = [](int worker) {
    return Fault{.kind = FaultKind::kCrash,
                 .at = milliseconds(600),
                 .lasts = milliseconds(30000),
                 .a = worker};
  };
  plan.faults = {crash(0), crash(1)};
  const Outcome outcome = RunInChild(plan);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.totals.failed, outcome.totals.requests) << outcome.refused;
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
      // Four plans with this pair end in an error: a retry must avoid it.
      {"PartitionOfAPairThatOutlastsFourPlans",
       {{.kind = FaultKind::kPartition, .at = kAt, .lasts = 5 * kLasts, .a = 0, .b = 2}}},
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
      {"HalfTheFleetHasAnotherModel",
       {{.kind = FaultKind::kCrashTwin, .at = kAt, .lasts = milliseconds(1000), .a = 0},
        {.kind = FaultKind::kCrashTwin, .at = kAt, .lasts = milliseconds(1000), .a = 2}}},
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
    const bool named = line.ends_with(" overloaded") || line.ends_with(" queue_full");
    EXPECT_TRUE(named) << line;
  }
  return outcome.totals;
}

// Requests beyond the capacity are refused, and cost those that are served nothing.
TEST(WorldTest, ServesAsManyWhenFarMoreAsk) {
  const Totals half = UnderLoad(300);
  const Totals much = UnderLoad(3000);
  EXPECT_GT(much.failed, 0) << "not too much";
  EXPECT_GE(much.ok, half.ok * 9 / 10);
  std::puts((Summary(half) + "\n" + Summary(much)).c_str());
}

// The worlds of `seeds` seeds, `jobs` of them at a time; `end` gets each plan and its outcome.
template <class End>
void RunWorlds(uint64_t first, uint64_t seeds, size_t jobs, const End& end) {
  std::deque<std::pair<Plan, Child>> running;
  for (uint64_t seed = first; seed < first + seeds || !running.empty();) {
    if (EndsEarly()) seeds = 0;
    while (seed < first + seeds && running.size() < jobs) {
      const Plan plan = MakePlan(seed++, {.requests = 100, .faults = 8});
      running.emplace_back(plan, Child(plan));
    }
    const Outcome outcome = running.front().second.Wait();
    end(running.front().first, outcome);
    running.pop_front();
  }
}

// Worlds that have failed once: 815 had an answer of two models, because a request was continued by
// a process that had started at the address of another; 5191 had a lossy policy refused for good
// while the only prefill worker was gone; 113 and 4578 were faults of the world.
TEST(WorldTest, HoldsItsInvariantsFromSeedsThatFoundFaults) {
  for (const uint64_t seed : {113, 815, 4578, 5191}) {
    const Outcome outcome = RunInChild(MakePlan(seed, {.requests = 100, .faults = 8}));
    EXPECT_EQ(outcome.failure, "") << "seed " << seed;
  }
}

TEST(WorldTest, HoldsItsInvariantsFromEverySeed) {
  const uint64_t seeds = Setting("WORLD_SEEDS", std::getenv("WORLD_SEED") != nullptr ? 1 : 100);
  const size_t jobs = std::max<uint64_t>(1, Setting("WORLD_JOBS", 1));
  Totals totals;
  RunWorlds(Setting("WORLD_SEED", 1), seeds, jobs, [&](const Plan& plan, const Outcome& outcome) {
    totals += outcome.totals;
    if (std::getenv("WORLD_VERBOSE") != nullptr) std::puts(outcome.refused.c_str());
    if (outcome.failure.empty()) return;
    ADD_FAILURE() << ReportOf(plan, outcome, Setting("WORLD_SHRINK", 1) != 0);
  });
  std::puts(Summary(totals).c_str());
}

}  // namespace
}  // namespace penstock::world
