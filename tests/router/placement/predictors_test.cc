#include "router/placement/predictors.h"

#include <gtest/gtest.h>

#include <random>

#include "router/placement/prefill_queue.h"

namespace penstock {
namespace {

using namespace std::chrono_literals;

TEST(PrefillPredictor, FindsTheCoefficientsBehindNoise) {
  std::mt19937_64 random(1);
  std::uniform_int_distribution<uint32_t> length(100, 30'000);
  std::normal_distribution<double> noise(1, 0.05);
  const PrefillModel real{.base_ms = 30, .ms_per_token = 0.1124, .ms_per_square = 1.05e-6};
  PrefillPredictor predictor;
  EXPECT_FALSE(predictor.known());
  for (int i = 0; i < 400; ++i) {
    const uint32_t n = length(random);
    const uint32_t p = n / 2 * (i % 2);
    predictor.Observe(n, p, real.Ms(n, p) * noise(random));
  }
  EXPECT_TRUE(predictor.known());
  for (const uint32_t n : {2000u, 8000u, 25'000u}) {
    EXPECT_NEAR(predictor.model().Ms(n, 0) / real.Ms(n, 0), 1, 0.06) << n;
  }
}

TEST(PrefillPredictor, FollowsAWorkerThatSlowsDown) {
  PrefillPredictor predictor;
  const auto run = [&](double ms_per_token) {
    for (uint32_t i = 0; i < 1500; ++i) {
      const uint32_t n = 500 + 37 * (i % 100);
      predictor.Observe(n, 0, ms_per_token * n);
    }
  };
  run(0.1);
  EXPECT_NEAR(predictor.model().Ms(2000, 0), 200, 10);
  run(0.3);
  EXPECT_NEAR(predictor.model().Ms(2000, 0), 600, 30);
}

TEST(PrefillPredictor, NeverGivesANegativeTime) {
  PrefillPredictor predictor;
  for (int i = 0; i < 100; ++i) predictor.Observe(1000 + i, 0, 500 - i);  // longer is faster
  for (const uint32_t n : {1u, 100u, 10'000u}) EXPECT_GE(predictor.model().Ms(n, 0), 0);
}

TEST(StepPredictor, TellsSequencesFromContext) {
  StepPredictor predictor;
  const StepModel real{.base_ms = 16, .ms_per_sequence = 0.11, .ms_per_context_token = 2.9e-5};
  for (int i = 0; i < 500; ++i) {
    const double sequences = 1 + i % 60;
    const double context = 1e4 + 2e4 * (i * 7 % 50);
    predictor.Observe(sequences, context, real.Ms(sequences, context));
  }
  EXPECT_NEAR(predictor.model().Ms(32, 400'000), real.Ms(32, 400'000), 0.3);
}

TEST(PrefillQueue, WaitsForWhatIsLeftOfTheFirstAndForAllBehind) {
  PrefillQueue queue;
  const TimePoint start{};
  EXPECT_EQ(queue.WaitMs(start), 0);
  queue.Add(1, 100, start);
  queue.Add(2, 50, start + 20ms);
  EXPECT_NEAR(queue.WaitMs(start + 20ms), 130, 1e-6);
  EXPECT_NEAR(queue.WaitMs(start + 500ms), 50, 1e-6) << "the first one is late, the other to come";
  queue.Remove(1, start + 500ms);
  EXPECT_NEAR(queue.WaitMs(start + 510ms), 40, 1e-6);
  queue.Remove(7, start + 510ms);
  queue.Remove(2, start + 510ms);
  EXPECT_EQ(queue.WaitMs(start + 510ms), 0);
  EXPECT_NEAR(queue.RecentWorkMs(start + 20ms), 150, 1);
  EXPECT_LT(queue.RecentWorkMs(start + 10min), 0.1);
}

}  // namespace
}  // namespace penstock
