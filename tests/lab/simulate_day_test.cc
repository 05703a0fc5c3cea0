#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "lab/simulate/sim_day.h"
#include "lab/simulate/sim_options.h"

namespace penstock {
namespace {

// Requests at an even rate, as the traces of an hour have it; each third one repeats a prefix.
SimTrace EvenTrace(uint32_t requests) {
  SimTrace trace;
  for (uint32_t i = 0; i < requests; ++i) {
    trace.requests.push_back({.arrival_s = 0.3 * i,
                              .prompt_tokens = 2 * trace.block_tokens,
                              .answer_tokens = 10,
                              .blocks = {i / 3, requests + i}});
  }
  trace.unique_blocks = 2 * requests;
  return trace;
}

TEST(DayCurve, TheRateIsTheSlopeOfTheShare) {
  const DayCurve day{.hours = 24, .peak_over_trough = 4};
  EXPECT_NEAR(day.RateAt(12) / day.RateAt(0), 4, 1e-9);
  EXPECT_NEAR(day.RateAt(6), 1, 1e-9);
  EXPECT_EQ(day.ShareBefore(0), 0);
  EXPECT_NEAR(day.ShareBefore(24), 1, 1e-12);
  for (double hour = 0.5; hour < 24; hour += 0.5) {
    const double slope = (day.ShareBefore(hour + 1e-4) - day.ShareBefore(hour - 1e-4)) / 2e-4;
    EXPECT_NEAR(slope * 24, day.RateAt(hour), 1e-3);
    EXPECT_NEAR(day.HourOf(day.ShareBefore(hour)), hour, 1e-6);
  }
}

// Counts the requests of every hour of the day, and not only the curve that was meant to place
// them.
TEST(SpreadOverDay, EveryHourHasTheRateOfTheCurve) {
  for (const uint32_t plays : {1u, 6u}) {
    for (const double hours : {24.0, 6.0}) {
      const DayCurve day{.hours = hours, .peak_over_trough = 4};
      const SimTrace spread = SpreadOverDay(EvenTrace(12'000), plays, day);
      ASSERT_EQ(spread.requests.size(), 12'000u * plays);
      std::vector<double> counts(24);
      for (const SimRequest& request : spread.requests) {
        const auto bin = static_cast<size_t>(request.arrival_s / 3600 / hours * 24);
        ASSERT_LT(bin, 24u);
        ++counts[bin];
      }
      const double mean = 12'000.0 * plays / 24;
      for (size_t bin = 0; bin < 24; ++bin) {
        const double middle = (static_cast<double>(bin) + 0.5) * hours / 24;
        EXPECT_NEAR(counts[bin] / mean, day.RateAt(middle), 0.02) << plays << " plays, bin " << bin;
      }
    }
  }
}

TEST(SpreadOverDay, OrderAndPrefixesStayAndPlaysShareNothing) {
  const SimTrace trace = EvenTrace(300);
  const SimTrace spread = SpreadOverDay(trace, 3, {.hours = 24});
  EXPECT_EQ(spread.unique_blocks, 3 * trace.unique_blocks);
  std::set<uint32_t> before;
  for (size_t i = 0; i < spread.requests.size(); ++i) {
    const SimRequest& request = spread.requests[i];
    const SimRequest& original = trace.requests[i % 300];
    if (i > 0) {
      EXPECT_GT(request.arrival_s, spread.requests[i - 1].arrival_s);
    }
    EXPECT_EQ(request.prompt_tokens, original.prompt_tokens);
    for (size_t block = 0; block < request.blocks.size(); ++block) {
      const auto play = static_cast<uint32_t>(i / 300);
      EXPECT_EQ(request.blocks[block], original.blocks[block] + play * trace.unique_blocks);
      if (i % 300 == 0) {
        EXPECT_FALSE(before.contains(request.blocks[block]));
      }
    }
    before.insert(request.blocks.begin(), request.blocks.end());
  }
  EXPECT_LT(spread.requests.back().arrival_s, 24 * 3600);
}

TEST(SpreadOverDay, AFlatDayHasOneRate) {
  const SimTrace spread = SpreadOverDay(EvenTrace(1000), 1, {.hours = 1, .peak_over_trough = 1});
  for (size_t i = 1; i < spread.requests.size(); ++i) {
    EXPECT_NEAR(spread.requests[i].arrival_s - spread.requests[i - 1].arrival_s, 3.6, 1e-3);
  }
}

// A short day on the real router and workers: replicas come and go, every request is answered, and
// fewer hours are used than by the fleet of the peak.
class SimulateDay : public testing::Test {
 protected:
  static SimResult Of(SimScaler scaler) {
    const SimJob job{
        .source = {.copies = 2,
                   .synthetic = {.requests = 3000},
                   .day_hours = 2,
                   .peak_over_trough = 6},
        .options = {
            .workers = 4,
            .decode_workers = 2,
            .speed = 1,
            .scaling = {
                .scaler = scaler, .workers_max = 12, .start_up_s = 60, .cache_blocks = 3000}}};
    auto result = Simulate(job);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : SimResult{};
  }
};

TEST_F(SimulateDay, AStaticFleetUsesItsWorkersAllDay) {
  const SimResult result = Of(SimScaler::kNone);
  EXPECT_EQ(result.failed, 0);
  EXPECT_NEAR(result.prefill_worker_hours, 8, 0.1);
  EXPECT_NEAR(result.decode_worker_hours, 4, 0.1);
  EXPECT_EQ(result.scale_changes, 0);
}

TEST_F(SimulateDay, ReplicasFollowTheLoadAndNoRequestFails) {
  const SimResult result = Of(SimScaler::kPenstock);
  EXPECT_EQ(result.failed, 0);
  EXPECT_GT(result.scale_changes, 2);
  EXPECT_LT(result.prefill_worker_hours + result.decode_worker_hours, 11);
  EXPECT_GT(result.slo, 0.9);
  EXPECT_LE(result.scale_turns, 8);
}

TEST_F(SimulateDay, KedasRuleRunsToo) {
  const SimResult result = Of(SimScaler::kKeda);
  EXPECT_EQ(result.failed, 0);
  EXPECT_GT(result.scale_changes, 2);
}

}  // namespace
}  // namespace penstock
