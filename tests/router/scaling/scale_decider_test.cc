#include "router/scaling/scale_decider.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace penstock {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr TimePoint kStart{std::chrono::hours(1)};

// Two Deployments that do at once what the decider says. Loads are functions of the time.
class Cluster {
 public:
  using Load = std::function<double(double minute)>;

  explicit Cluster(ScaleOptions options = {}) : options_(options), decider_(options_) {}

  Load prefill = [](double) { return 1; };
  Load decode = [](double) { return 1; };
  ScaleSituation now{.prefill = {.known = true, .replicas = 2},
                     .decode = {.known = true, .replicas = 2}};
  ScaleDecision last;
  int turns = 0;
  int direction_changes = 0;  // of the prefill replicas
  uint32_t least = 100;       // prefill replicas

  void Run(Duration time) {
    for (const TimePoint end = at_ + time; at_ < end; at_ += seconds(5)) {
      const double minute = Milliseconds(at_ - kStart) / 60'000;
      now.prefill.load = {
          .work = prefill(minute), .slots = 1, .service_ms = 1000, .wait_max_ms = 2000};
      now.decode.load = {.work = decode(minute), .slots = 100};
      last = decider_.Observe(now, at_);
      Apply();
    }
  }

  uint32_t in_prefill() const {
    return now.prefill.replicas + now.prefill.visitors - now.decode.visitors;
  }
  uint32_t in_decode() const {
    return now.decode.replicas + now.decode.visitors - now.prefill.visitors;
  }

 private:
  void Apply() {
    const int direction = last.prefill.replicas > now.prefill.replicas   ? 1
                          : last.prefill.replicas < now.prefill.replicas ? -1
                                                                         : 0;
    if (direction != 0) {
      direction_changes += direction_ != 0 && direction != direction_;
      direction_ = direction;
    }
    now.prefill.replicas = last.prefill.replicas;
    now.decode.replicas = last.decode.replicas;
    least = std::min(least, now.prefill.replicas);
    if (last.turn == RoleTurn::kNone) return;
    ++turns;
    RoleFleet& to = last.turn == RoleTurn::kToPrefill ? now.prefill : now.decode;
    RoleFleet& from = last.turn == RoleTurn::kToPrefill ? now.decode : now.prefill;
    last.home ? --from.visitors : ++to.visitors;
  }

  const ScaleOptions options_;
  ScaleDecider decider_;
  TimePoint at_ = kStart;
  int direction_ = 0;
};

TEST(Staffing, LateShareIsErlangsFormula) {
  // Two servers at 1 Erlang: one third of requests wait.
  EXPECT_NEAR(LateShare({.work = 1, .slots = 1}, 2), 1 / 3.0, 1e-9);
  EXPECT_NEAR(LateShare({.work = 0.5, .slots = 2}, 1), 1 / 3.0, 1e-9);
  EXPECT_EQ(LateShare({.work = 2}, 2), 1);
  EXPECT_EQ(LateShare({.work = 0}, 1), 0);
  const QueueLoad patient{.work = 1, .slots = 1, .service_ms = 1000, .wait_max_ms = 1500};
  EXPECT_NEAR(LateShare(patient, 2), std::exp(-1.0) / 3, 1e-9);
}

TEST(Staffing, MoreWorkNeedsMoreWorkersAndALargeFleetLessSpare) {
  const auto needed = [](double work) {
    return WorkersFor({.work = work, .slots = 1, .service_ms = 1000, .wait_max_ms = 2000}, {});
  };
  EXPECT_EQ(needed(0), 1u);
  uint32_t last = 0;
  for (double work = 0.1; work < 40; work += 0.1) {
    const uint32_t workers = needed(work);
    EXPECT_GE(workers, last);
    EXPECT_GT(workers, work);
    last = workers;
  }
  EXPECT_GT(needed(1) / 1.0, 1.5 * needed(30) / 30.0);
  EXPECT_EQ(needed(1e6), kWorkersMax);
}

TEST(LoadTrend, FollowsARampAndDoesNotExtrapolateAFall) {
  LoadTrend rising(minutes(1), minutes(10));
  LoadTrend falling(minutes(1), minutes(10));
  for (int s = 0; s <= 3600; s += 5) {
    rising.Observe(0.001 * s, kStart + seconds(s));
    falling.Observe(10 - 0.001 * s, kStart + seconds(s));
  }
  EXPECT_NEAR(rising.slope_per_s(), 0.001, 1e-4);
  EXPECT_NEAR(rising.After(minutes(2)), 3.6 + 0.12, 0.05);
  EXPECT_LT(falling.slope_per_s(), 0);
  EXPECT_EQ(falling.After(minutes(2)), falling.level());
}

TEST(ScaleDecider, KeepsASteadyFleet) {
  Cluster cluster;
  cluster.now.prefill.replicas = 3;
  cluster.Run(hours(3));
  EXPECT_EQ(cluster.now.prefill.replicas, 3u);  // one prompt at a time: 1 busy worker needs 3
  EXPECT_EQ(cluster.now.decode.replicas, 2u);
  EXPECT_EQ(cluster.turns, 0);
  EXPECT_NE(cluster.last.prefill.why.find("keeps 1.00 workers busy"), std::string::npos)
      << cluster.last.prefill.why;
}

TEST(ScaleDecider, AWorkerIsThereBeforeARampNeedsIt) {
  Cluster cluster({.prefill = {.max = 40}});
  cluster.now.prefill.replicas = 3;
  cluster.prefill = [](double minute) { return 1 + std::max(0.0, minute - 60) / 10; };
  cluster.Run(minutes(90));
  const StaffingRule rule;
  for (int i = 0; i < 60; ++i) {
    const uint32_t before = cluster.now.prefill.replicas;
    cluster.Run(minutes(1));
    // Those that are wanted now serve in two minutes. The slope is known to a few percent.
    const double work = 1 + (30 + i + 2) / 10.0 - 0.02;
    EXPECT_GE(before, WorkersFor({work, 1, 1000, 2000}, rule)) << "minute " << i;
  }
}

TEST(ScaleDecider, GoesDownOneByOneAndNeverBelowTheNeed) {
  Cluster cluster({.prefill = {.max = 20}});
  cluster.now.prefill.replicas = 12;
  cluster.prefill = [](double) { return 3; };
  uint32_t before = 12;
  for (int i = 0; i < 120; ++i) {
    cluster.Run(minutes(1));
    EXPECT_GE(cluster.now.prefill.replicas + 1, before);
    before = cluster.now.prefill.replicas;
    if (i < 9) {
      EXPECT_EQ(before, 12u);  // spare for ten minutes first
    }
  }
  EXPECT_EQ(before, WorkersFor({3.3, 1, 1000, 2000}, {}));
}

// Load around the border between two numbers of workers, with noise.
TEST(ScaleDecider, AtMostTwoChangesOfDirectionAnHour) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> noise(0, 0.5 + seed * 0.05);
    const double mean = 2 + 0.05 * seed;
    Cluster cluster({.prefill = {.max = 40}});
    cluster.prefill = [&](double) { return std::max(0.0, mean + noise(random)); };
    for (int hour = 0; hour < 6; ++hour) {
      const int before = cluster.direction_changes;
      cluster.Run(hours(1));
      EXPECT_LE(cluster.direction_changes - before, 2) << "seed " << seed;
    }
  }
}

// Bursts that come and go exactly as the decider reacts: the worst case for it.
TEST(ScaleDecider, AnAdversaryGetsNoMoreThanTwoChangesADay) {
  Cluster cluster({.prefill = {.max = 40}});
  cluster.prefill = [&](double) { return cluster.now.prefill.replicas > 4 ? 0.5 : 4.0; };
  for (int hour = 0; hour < 24; ++hour) {
    const int before = cluster.direction_changes;
    cluster.Run(hours(1));
    EXPECT_LE(cluster.direction_changes - before, 2);
  }
  EXPECT_GT(cluster.direction_changes, 4);
}

TEST(ScaleDecider, TheBoundsHold) {
  Cluster cluster({.prefill = {.min = 3, .max = 5}, .decode = {.min = 4, .max = 6}});
  cluster.prefill = [](double) { return 50; };
  cluster.decode = [](double) { return 0; };
  cluster.Run(hours(2));
  EXPECT_EQ(cluster.now.prefill.replicas, 5u);
  EXPECT_EQ(cluster.now.decode.replicas, 4u);
  EXPECT_NE(cluster.last.prefill.why.find("the limit is 5"), std::string::npos);
  EXPECT_NE(cluster.last.decode.why.find("the minimum is 4"), std::string::npos);
  cluster.now.decode = {.replicas = 2};
  cluster.Run(seconds(5));
  EXPECT_EQ(cluster.now.decode.replicas, 4u);
  EXPECT_EQ(cluster.last.decode.why, "the load is unknown; the minimum is 4");
}

// Ten minutes without work are twenty seconds, and so on; the time to start a worker stays.
TEST(ScaleDecider, SpedUpDecidesTheSameEarlier) {
  const ScaleOptions options = SpedUp({}, 30);
  EXPECT_EQ(options.policy.start_up, ScalePolicy{}.start_up);
  for (const bool fast : {true, false}) {
    Cluster cluster(fast ? options : ScaleOptions{});
    cluster.now.prefill.replicas = 3;
    cluster.prefill = [](double) { return 0; };
    const Duration hold = fast ? seconds(20) : minutes(10);
    cluster.Run(hold - seconds(5));
    EXPECT_EQ(cluster.now.prefill.replicas, 3u);
    cluster.Run(seconds(15));
    EXPECT_EQ(cluster.now.prefill.replicas, fast ? 1u : 2u);  // 4 s lie between two, not 120 s
  }
}

TEST(ScaleDecider, DecidesNothingWithoutALoad) {
  Cluster cluster;
  cluster.now.prefill.known = cluster.now.decode.known = false;
  cluster.now.prefill.replicas = 7;
  cluster.Run(hours(1));
  EXPECT_EQ(cluster.now.prefill.replicas, 7u);
  EXPECT_EQ(cluster.last.prefill.why, "the load is unknown");
}

TEST(ScaleDecider, OneWrongMeasurementStartsNoFleet) {
  Cluster cluster({.prefill = {.max = 1000}});
  cluster.Run(minutes(30));
  const uint32_t before = cluster.now.prefill.replicas;
  bool once = true;
  cluster.prefill = [&](double) { return std::exchange(once, false) ? 1e9 : 1; };
  cluster.Run(minutes(1));
  EXPECT_EQ(cluster.now.prefill.replicas, before + 4);
}

// The load moves from prompts to answers and back: a spare worker changes its role, and no replica
// starts or ends.
TEST(ScaleDecider, RolesChangeBeforeReplicas) {
  Cluster cluster({.may_turn = true});
  cluster.now.prefill.replicas = 4;
  cluster.now.decode.replicas = 4;
  cluster.prefill = [](double minute) { return minute < 60 || minute > 200 ? 1.8 : 0.4; };
  cluster.decode = [](double minute) { return minute < 60 || minute > 200 ? 3.0 : 4.6; };
  cluster.Run(minutes(100));
  EXPECT_GE(cluster.in_decode(), 6u);
  EXPECT_GE(cluster.now.decode.visitors, 1u);
  EXPECT_EQ(cluster.now.decode.replicas + cluster.now.prefill.replicas, 8u);
}

// After a change of roles the replicas count for the role in which they serve, so nothing is added
// or removed for it, and a visitor is home before its new role loses a replica.
TEST(ScaleDecider, RoleAndReplicaChangesDoNotActAgainstEachOther) {
  Cluster cluster({.may_turn = true});
  cluster.now.prefill = {.known = true, .replicas = 3, .visitors = 1};
  cluster.now.decode = {.known = true, .replicas = 4};
  cluster.prefill = [](double minute) { return minute < 60 ? 1.8 : 0.9; };  // needs 4, then 3
  cluster.decode = [](double) { return 2.2; };                              // needs 3
  cluster.Run(minutes(60));
  EXPECT_EQ(cluster.turns, 0);
  EXPECT_EQ(cluster.now.prefill.replicas, 3u);
  EXPECT_EQ(cluster.now.decode.replicas, 4u);
  cluster.Run(hours(2));
  EXPECT_EQ(cluster.turns, 1);
  EXPECT_EQ(cluster.now.prefill.visitors, 0u);
  EXPECT_EQ(cluster.now.prefill.replicas, 3u);
  EXPECT_EQ(cluster.now.decode.replicas, 3u);
}

TEST(ScaleDecider, WaitsWhileAWorkerChangesItsRole) {
  Cluster cluster({.may_turn = true});
  cluster.now.turning = true;
  cluster.prefill = [](double) { return 6; };
  cluster.Run(minutes(10));
  EXPECT_EQ(cluster.now.prefill.replicas, 2u);
  cluster.now.turning = false;
  cluster.Run(minutes(3));
  EXPECT_GT(cluster.now.prefill.replicas, 2u);
}

}  // namespace
}  // namespace penstock
