// Handoffs in worlds of few workers: every block of every prompt travels, over a network that is
// worse than elsewhere and into pages that are written slowly. HANDOFF_SEED=n runs one world alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "lab/world/machine/random.h"
#include "tests/world/harness.h"

namespace penstock::world {
namespace {

using std::chrono::milliseconds;

constexpr Duration kWorkersReady = milliseconds(500);
// A survivor has all its blocks back (docs/ARCHITECTURE.md, invariant 7).
constexpr Duration kSurvivorBound = milliseconds(5000);
// A cancelled request is over on both sides: messages take 1 ms at most, a write 60 ms.
constexpr Duration kCancelBound = milliseconds(100);

// How bad a world is.
enum class Weather {
  kCalm,     // delays only: no request fails
  kLossy,    // slabs are lost, repeated, refused: no request fails all the same
  kHostile,  // and damaged; calls break, processes die or stop, hosts are cut off, clients leave
};

RequestPlan LonePrompt(Random& random, Duration at, size_t tokens_max) {
  RequestPlan request{.at = at};
  // No two begin alike: every block is computed and sent.
  for (size_t i = 1 + random.Below(tokens_max); i > 0; --i) {
    request.prompt.push_back('a' + static_cast<uint32_t>(random.Below(26)));
  }
  request.max_tokens = 1 + static_cast<uint32_t>(random.Below(8));
  request.seed = random.Next() >> 2;
  return request;
}

NetworkFaults DrawNetwork(Random& random, Weather weather) {
  NetworkFaults faults{.delay_max = random.Between(milliseconds(1), milliseconds(12))};
  if (weather == Weather::kCalm) return faults;
  // Each world has some of them, so that a fault is also seen alone.
  const auto draw = [&](uint64_t chance, uint64_t max) {
    return random.Chance(chance) ? random.Below(max) : 0;
  };
  faults.slab_lost = draw(500, 80);
  faults.slab_repeated = draw(500, 400);
  faults.end_lost = draw(500, 150);
  faults.put_refused = draw(500, 200);
  faults.early_end = draw(500, 300);
  faults.slab_stuck = draw(300, 20);
  if (weather == Weather::kLossy) return faults;
  faults.slab_damaged = draw(300, 30);
  faults.call_broken = draw(500, 3);
  return faults;
}

void AddFaults(Random& random, Plan& plan) {
  constexpr FaultKind kKinds[] = {FaultKind::kCrash, FaultKind::kPartition,
                                  FaultKind::kPartitionOneWay, FaultKind::kPause};
  const auto workers = static_cast<uint64_t>(plan.prefill_workers + plan.decode_workers);
  for (uint64_t i = random.Below(5); i > 0; --i) {
    plan.faults.push_back({.kind = kKinds[random.Below(std::size(kKinds))],
                           .at = random.Between(kWorkersReady, milliseconds(2500)),
                           .lasts = random.Between(milliseconds(10), milliseconds(4000)),
                           .a = static_cast<int>(random.Below(workers)),
                           .b = static_cast<int>(random.Below(workers + 1))});
  }
}

Plan MakeHandoffPlan(uint64_t seed, Weather weather) {
  Random random(seed);
  const bool hostile = weather == Weather::kHostile;
  Plan plan{.seed = seed,
            .prefill_workers = 1 + static_cast<int>(random.Below(2)),
            .decode_workers = 1 + static_cast<int>(random.Below(2)),
            .pages = 40 + static_cast<int>(random.Below(40))};
  plan.network = DrawNetwork(random, weather);
  plan.slow_pages = random.Chance(500);
  plan.planned = true;  // One model.
  for (uint64_t i = hostile ? 5 + random.Below(15) : 1 + random.Below(6); i > 0; --i) {
    const Duration at = kWorkersReady + random.Between(Duration::zero(), milliseconds(1500));
    plan.requests.push_back(LonePrompt(random, at, random.Chance(500) ? 80 : 280));
    if (!hostile) continue;
    if (random.Chance(150)) plan.requests.back().cancelled = milliseconds(random.Below(200) + 1);
    if (random.Chance(300)) plan.requests.back().deadline = milliseconds(50 + random.Below(4000));
  }
  if (hostile) AddFaults(random, plan);
  return plan;
}

class HandoffWorldTest : public testing::TestWithParam<Weather> {};

TEST_P(HandoffWorldTest, HoldsItsInvariantsFromEverySeed) {
  const char* const alone = std::getenv("HANDOFF_SEED");
  const uint64_t first = alone == nullptr ? 1 : std::strtoull(alone, nullptr, 10);
  const uint64_t seeds = alone != nullptr ? 1 : GetParam() == Weather::kHostile ? 150 : 50;
  Totals totals;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const Plan plan = MakeHandoffPlan(seed, GetParam());
    const Outcome outcome = RunInChild(plan);
    EXPECT_EQ(outcome.failure, "") << "HANDOFF_SEED=" << seed;
    if (GetParam() != Weather::kHostile) {
      EXPECT_EQ(outcome.totals.failed, 0) << "HANDOFF_SEED=" << seed << "\n" << outcome.refused;
    }
    totals += outcome.totals;
  }
  std::puts(Summary(totals).c_str());
  EXPECT_GT(totals.ok, static_cast<int64_t>(seeds));  // The worlds are not empty.
}

INSTANTIATE_TEST_SUITE_P(Weathers, HandoffWorldTest,
                         testing::Values(Weather::kCalm, Weather::kLossy, Weather::kHostile),
                         [](const auto& weather) {
                           return std::string(std::array{
                               "Calm", "Lossy", "Hostile"}[static_cast<size_t>(weather.param)]);
                         });

// One prefill worker on host 0, one decode worker on host 1, the router on host 2. Requests for the
// first half second.
Plan PairPlan(Random& random, uint64_t seed) {
  Plan plan{.seed = seed, .prefill_workers = 1, .decode_workers = 1, .planned = true};
  plan.slow_pages = random.Chance(500);
  for (int i = 0; i < 10; ++i) {
    const Duration at = kWorkersReady + random.Between(Duration::zero(), milliseconds(500));
    plan.requests.push_back(LonePrompt(random, at, 280));
  }
  return plan;
}

void CutOff(Plan& plan, Duration at, int host) {
  for (int other = 0; other < 3; ++other) {
    if (other == host) continue;
    plan.faults.push_back({.kind = FaultKind::kPartition,
                           .at = at,
                           .lasts = 2 * kSurvivorBound,
                           .a = host,
                           .b = other});
  }
}

// When one worker dies or is cut off, every worker that lives has all its blocks back in time.
TEST(HandoffPairTest, SurvivorsHaveTheirBlocksBackInTime) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    Plan plan = PairPlan(random, seed);
    const Duration at = kWorkersReady + random.Between(milliseconds(10), milliseconds(500));
    // Later requests find no pair.
    std::erase_if(plan.requests, [&](const RequestPlan& request) { return request.at > at; });
    const int lost = static_cast<int>(random.Below(2));
    const bool dies = random.Chance(500);
    if (dies) {
      plan.faults.push_back(
          {.kind = FaultKind::kCrash, .at = at, .lasts = 2 * kSurvivorBound, .a = lost});
    } else {
      CutOff(plan, at, lost);
      plan.idle_by.push_back({.at = at + kSurvivorBound, .worker = lost});
    }
    plan.idle_by.push_back({.at = at + kSurvivorBound, .worker = 1 - lost});
    const Outcome outcome = RunInChild(plan);
    EXPECT_EQ(outcome.failure, "") << "seed " << seed << ": " << (lost == 0 ? "prefill" : "decode")
                                   << " worker " << (dies ? "dies" : "is cut off");
  }
}

TEST(HandoffPairTest, ACancelledRequestIsOverOnBothSidesAtOnce) {
  int64_t cancelled = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    Plan plan = PairPlan(random, seed);
    plan.requests.resize(1);
    RequestPlan& request = plan.requests[0];
    request.max_tokens = 100;
    request.cancelled = random.Between(milliseconds(1), milliseconds(100));
    for (const int worker : {0, 1}) {
      plan.idle_by.push_back(
          {.at = request.at + request.cancelled + kCancelBound, .worker = worker});
    }
    const Outcome outcome = RunInChild(plan);
    EXPECT_EQ(outcome.failure, "") << "seed " << seed;
    cancelled += outcome.totals.cancelled;
  }
  EXPECT_GT(cancelled, 40);
}

}  // namespace
}  // namespace penstock::world
