// The sampling kernel against the CPU's sampler: the same token, always.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "model/sampler/token_draw.h"
#include "model/sampler/token_mass.h"
#include "tests/cuda/cases/sample_case.h"
#include "tests/cuda/emulator/emulator.h"

namespace penstock::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Knobs {
  float temperature = 1;
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
};

SampleRow RowOf(const Knobs& knobs, uint64_t random) {
  SampleRow row{.top_k = knobs.top_k, .random = random};
  if (knobs.temperature > 0) row.steepness = Softmax::At(0, knobs.temperature).steepness;
  if (knobs.top_p < 1) row.top_p = static_cast<int64_t>(FixedShare(knobs.top_p));
  if (knobs.min_p > 0) row.min_p_steps = MinPSteps(knobs.min_p);
  return row;
}

// The same draw as Sampler (model/sampler/sampler.cc), without its state.
uint32_t OnCpu(std::vector<float> logits, const Knobs& knobs, uint64_t random) {
  float max = MaxLogit(logits);
  for (float& logit : logits) {
    if (logit == kInfinity) logit = std::numeric_limits<float>::max();
  }
  max = std::min(max, std::numeric_limits<float>::max());
  if (max == -kInfinity) return 0;
  if (knobs.temperature == 0) {
    return static_cast<uint32_t>(std::ranges::find(logits, max) - logits.begin());
  }
  TokenDraw draw(logits, Softmax::At(max, knobs.temperature));
  if (knobs.top_k > 0) draw.KeepTopK(knobs.top_k);
  if (knobs.top_p < 1) draw.KeepTopP(knobs.top_p);
  if (knobs.min_p > 0) draw.KeepMinP(knobs.min_p);
  return draw.Pick(random);
}

std::vector<float> Logits(int vocabulary, float deviation, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> logits(vocabulary);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

void ExpectSame(const std::vector<float>& logits, const std::vector<Knobs>& knobs) {
  const auto vocabulary = static_cast<int32_t>(logits.size());
  std::mt19937_64 random(99);
  std::vector<float> all;
  std::vector<SampleRow> rows;
  std::vector<uint64_t> draws;
  for (const Knobs& each : knobs) {
    for (const uint64_t draw : {random(), uint64_t{0}, ~uint64_t{0}}) {
      all.insert(all.end(), logits.begin(), logits.end());
      rows.push_back(RowOf(each, draw));
      rows.back().logits_row = static_cast<int32_t>(rows.size()) - 1;
      draws.push_back(draw);
    }
  }
  const std::vector<SampledRow> sampled = RunSample(all, vocabulary, rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Knobs& k = knobs[i / 3];
    EXPECT_EQ(sampled[i].id, OnCpu(logits, k, draws[i]))
        << k.temperature << " top_k " << k.top_k << " top_p " << k.top_p << " min_p " << k.min_p;
  }
}

const std::vector<Knobs> kKnobs = {
    {.temperature = 0},
    {},
    {.temperature = 0.7f, .top_k = 1},
    {.temperature = 1.3f, .top_k = 40},
    {.temperature = 0.9f, .top_p = 0.8f},
    {.temperature = 2.0f, .min_p = 0.05f},
    {.temperature = 1.0f, .top_k = 17, .top_p = 0.5f},
    {.temperature = 1.5f, .top_k = 100, .top_p = 0.95f, .min_p = 0.01f},
    {.temperature = 0.2f, .top_p = 1e-6f, .min_p = 0.9f},
    {.temperature = 1.0f, .top_k = 1 << 30},
    {.temperature = 1.0f, .top_p = 1e-12f},
};

TEST(Sample, PicksWhatTheCpuPicks) {
  ExpectSame(Logits(3001, 2.0f, 1), kKnobs);
  ExpectSame(Logits(77, 6.0f, 2), kKnobs);
  ExpectSame({1.5f}, kKnobs);
}

TEST(Sample, BucketsLargerThanTheListAreNoOther) {
  std::vector<float> logits = Logits(2500, 1e-3f, 3);  // nearly all in one bucket
  ExpectSame(logits, kKnobs);
}

TEST(Sample, TiesGoByIdAndWhatIsNoNumberIsNeverDrawn) {
  std::vector<float> ties(300, 0.0f);
  for (size_t i = 0; i < ties.size(); i += 7) ties[i] = -0.0f;
  ExpectSame(ties, kKnobs);
  std::vector<float> odd = Logits(500, 3.0f, 4);
  odd[3] = NAN;
  odd[100] = -kInfinity;
  ExpectSame(odd, kKnobs);
  odd[200] = odd[201] = kInfinity;
  ExpectSame(odd, kKnobs);
  ExpectSame(std::vector<float>(50, -kInfinity), kKnobs);
}

TEST(Sample, TheShareOfTopPIsRoundedUp) {
  // Masses 2^40, 2^40 and 1: half of them is half a unit more than the first has.
  ExpectSame({0.0f, 0.0f, -27.73f}, {{.top_p = 0.5f}});
}

TEST(Sample, NeitherScheduleNorNeighboursMatter) {
  for (const auto order : emulator::kOrders) {
    const emulator::ScopedSchedule schedule(emulator::Copies::kEarly, order);
    ExpectSame(Logits(1001, 2.0f, 5), kKnobs);
  }
}

TEST(Sample, MassIsOfTheModelsOwnDistribution) {
  const std::vector<float> logits = Logits(1000, 2.0f, 6);
  SampleRow draw = RowOf({.temperature = 0.3f}, 5);
  draw.logits_row = 0;
  const SampledRow row = RunSample(logits, 1000, {draw})[0];
  EXPECT_EQ(row.max, MaxLogit(logits));
  EXPECT_EQ(row.logit, logits[row.id]);
  EXPECT_EQ(row.total_mass, TotalMass(Softmax::At(row.max, 1.0), logits));
}

TEST(Sample, DrawsOfOneRowAndNoneOfPadding) {
  std::vector<float> logits = Logits(400, 3.0f, 7);
  logits[33] = kInfinity;
  const std::vector<float> second = Logits(400, 3.0f, 8);
  logits.insert(logits.end(), second.begin(), second.end());
  std::vector<SampleRow> draws(4, RowOf({.temperature = 2}, 0));
  draws[0].logits_row = 1;
  draws[2].logits_row = 1;
  draws[2].random = ~uint64_t{0};
  draws[3].logits_row = 0;
  draws[1] = SampleRow{};
  const std::vector<SampledRow> sampled = RunSample(logits, 400, draws);
  EXPECT_EQ(sampled[0].id, OnCpu(second, {.temperature = 2}, 0));
  EXPECT_EQ(sampled[1].total_mass, 0u);  // as it was
  EXPECT_EQ(sampled[2].id, OnCpu(second, {.temperature = 2}, ~uint64_t{0}));
  EXPECT_EQ(sampled[3].id, 33u);
  EXPECT_EQ(sampled[3].logit, std::numeric_limits<float>::max());
  EXPECT_EQ(sampled[3].max, std::numeric_limits<float>::max());
}

// A barred token is not drawn, and counts for the row's maximum and mass as any other.
TEST(Sample, LeavesOutBarredTokens) {
  const std::vector<float> logits = Logits(1000, 3, 5);
  std::vector<uint32_t> ranked(logits.size());
  std::iota(ranked.begin(), ranked.end(), 0u);
  std::ranges::sort(ranked, std::greater(), [&](uint32_t id) { return logits[id]; });
  // The likeliest tokens, and those behind the likeliest.
  for (const int first : {0, 1}) {
    std::vector<float> without = logits;
    for (int i = first; i < first + 3; ++i) without[ranked[i]] = -kInfinity;
    for (const Knobs& knobs :
         {Knobs{.temperature = 0}, Knobs{}, Knobs{.top_k = 2}, Knobs{.top_p = 0.1f}}) {
      SampleRow row = RowOf(knobs, uint64_t{3} << 62);
      row.logits_row = 0;
      const SampledRow free = RunSample(logits, 1000, {row})[0];
      row.barred = 3;
      std::copy_n(ranked.begin() + first, 3, row.barred_ids);
      const SampledRow barred = RunSample(logits, 1000, {row})[0];
      EXPECT_EQ(barred.id, OnCpu(without, knobs, row.random));
      EXPECT_EQ(barred.logit, logits[barred.id]);
      EXPECT_EQ(barred.max, free.max);
      EXPECT_EQ(barred.total_mass, free.total_mass);
    }
  }
}

}  // namespace
}  // namespace penstock::cuda
