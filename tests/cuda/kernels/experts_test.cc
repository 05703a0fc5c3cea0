#include "kernels/cuda/experts.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/experts.h"
#include "tests/cuda/cases/experts_case.h"
#include "tests/cuda/cases/quantised_case.h"
#include "tests/cuda/emulator/emulator.h"

namespace penstock::cuda {
namespace {

TEST(CudaExperts, ScoresAreWhatTheOracleSays) {
  EXPECT_LT(ScoreDeviation(1, 8, 64, 1), 1e-6);
  EXPECT_LT(ScoreDeviation(5, 61, 200, 2), 1e-6);  // partial pieces of rows, vectors and inputs
  EXPECT_LT(ScoreDeviation(8, 129, 1032, 3), 1e-6);
  EXPECT_LT(ScoreDeviation(5, 61, 200, 2, /*bias=*/true), 1e-6);
}

TEST(CudaExperts, ScoresAreOfTheirRow) { EXPECT_TRUE(ScoresAreOfTheirRow(6, 20, 264, 4)); }

// Every rule, and the counts of real models: Mixtral, Qwen3, GLM-4.5, Qwen3-Next, DeepSeek.
std::vector<RouteCase> Routes() {
  std::vector<RouteCase> cases = {
      {.experts = 8, .per_token = 2},
      {.experts = 128, .per_token = 8},
      {.experts = 512, .per_token = 10},
      {.experts = 33, .per_token = 32},
      {.experts = 60, .per_token = 4, .normalise = false, .shared = true, .shared_gate = true},
      {.experts = 160,
       .per_token = 8,
       .sigmoid = true,
       .choice_bias = true,
       .shared = true,
       .scale = 2.5f},
      {.experts = 160, .per_token = 6, .normalise = false, .groups = 8, .kept_groups = 3},
      {.experts = 256,
       .per_token = 8,
       .sigmoid = true,
       .choice_bias = true,
       .scale = 2.5f,
       .groups = 8,
       .kept_groups = 4},
      {.experts = 64, .per_token = 4, .sigmoid = true, .groups = 32, .kept_groups = 2},
      {.experts = 5, .per_token = 5, .normalise = false, .sigmoid = true, .scale = 0.5f}};
  for (size_t i = 0, count = cases.size(); i < count; ++i) {
    if (cases[i].choice_bias) continue;
    cases.push_back(cases[i]);
    cases.back().ties = true;
  }
  return cases;
}

TEST(CudaExperts, RoutesAreWhatTheOracleSays) {
  for (const RouteCase& c : Routes()) {
    EXPECT_LT(RouteDeviation(c), 1e-6) << c.experts << " " << c.sigmoid << " " << c.ties;
  }
}

// The CPU's choice from the same scores: the router of one input, which is 1.
TEST(CudaExperts, RoutesAreTheCpus) {
  for (RouteCase c : Routes()) {
    c.shared_gate = false;
    const RouteInputs inputs = InputsOf(c);
    const RouteResult got = RunRoute(c, inputs);
    for (int r = 0; r < c.rows; ++r) {
      const float one = 1;
      std::vector<float> scores(c.experts), weights(c.per_token);
      std::vector<int32_t> chosen(c.per_token);
      penstock::Route({}, {.input = {&one, {1, 1}},
                           .router = {inputs.scores.data() + r * c.experts, {c.experts, 1}},
                           .normalise = c.normalise,
                           .sigmoid = c.sigmoid,
                           .choice_bias = {inputs.bias.data(), {std::ssize(inputs.bias)}},
                           .groups = c.groups,
                           .kept_groups = c.kept_groups,
                           .scale = c.scale,
                           .scores = {scores.data(), {1, c.experts}},
                           .chosen = {chosen.data(), {1, c.per_token}},
                           .weights = {weights.data(), {1, c.per_token}}});
      for (int i = 0; i < c.per_token; ++i) {
        EXPECT_EQ(got.chosen[r * c.per_token + i], chosen[i]) << c.experts << " row " << r;
        EXPECT_NEAR(got.weights[r * c.per_token + i], weights[i], 1e-6);
      }
    }
  }
}

// A broken model's scores still choose as many experts as a token needs, each once.
TEST(CudaExperts, ScoresThatAreNoNumbersChooseExperts) {
  for (const auto& [groups, step] : {std::pair{1, 1}, {1, 2}, {1, 3}, {7, 1}, {7, 2}, {7, 11}}) {
    const RouteCase c{.rows = 1, .experts = 70, .per_token = 8, .groups = groups, .kept_groups = 1};
    RouteInputs inputs = InputsOf(c);
    for (int e = 0; e < c.experts; e += step) {
      inputs.scores[e] = std::numeric_limits<float>::quiet_NaN();
    }
    std::vector<int32_t> chosen = RunRoute(c, inputs).chosen;
    std::ranges::sort(chosen);
    EXPECT_EQ(std::ranges::adjacent_find(chosen), chosen.end()) << step;
    EXPECT_GE(chosen.front(), 0);
    EXPECT_LT(chosen.back(), c.experts);
  }
}

TEST(CudaExperts, PairsAreSortedByExpert) {
  for (const auto order : emulator::kOrders) {
    const emulator::ScopedSchedule schedule(emulator::Copies::kLate, order);
    EXPECT_TRUE(GroupIsExact(1, 8, 2, 1));
    EXPECT_TRUE(GroupIsExact(70, 5, 2, 2));
    EXPECT_TRUE(GroupIsExact(90, 33, 8, 3));  // more pairs than threads
    EXPECT_TRUE(GroupIsExact(3, 512, 10, 4));
  }
}

TEST(GroupedGemm, HasTheBitsOfDenseProducts) {
  using enum GroupedKernel;
  for (const GroupedKernel kernel : {kSkinny1, kSkinny2, kSkinny4, kSkinny8, kWide, kChosen}) {
    // Experts without rows, and some with more than a chunk; slices; partial blocks and stages.
    EXPECT_TRUE(GroupedIsDense({0, 3, 0, 70, 1}, 200, 24, kernel, 1));
    EXPECT_TRUE(GroupedIsDense({9, 0, 17}, 1160, 72, kernel, 2));
    EXPECT_TRUE(GroupedIsDense({1}, 128, 136, kernel, 3));
  }
  EXPECT_TRUE(GroupedIsDense({130, 0, 5}, 1160, 136, kWide, 4));
  EXPECT_TRUE(GroupedIsDense({80, 20}, 1160, 72, kChosen, 5));  // many: the wide kernel
}

TEST(GroupedGemm, HasThemFromCodes) {
  using enum GroupedKernel;
  for (const CodeForm& form : AllForms(InputOrder::kOwn)) {
    SCOPED_TRACE(NameOf(form));
    for (const GroupedKernel kernel : {kSkinny1, kSkinny2, kSkinny4, kSkinny8, kChosen}) {
      EXPECT_TRUE(GroupedCodesAreDense(form, {0, 3, 0, 70, 1}, 200, 48, kernel, 1));
      EXPECT_TRUE(GroupedCodesAreDense(form, {9, 0, 17}, 1160, 144, kernel, 2));
    }
    // So many rows that matrices are expanded, two and then one.
    EXPECT_TRUE(GroupedCodesAreDense(form, {180, 20, 5}, 264, 72, kChosen, 3));
  }
}

TEST(GroupedGemm, HasThemInAnySchedule) {
  for (const auto copies : {emulator::Copies::kLate, emulator::Copies::kEarly}) {
    for (const auto order : emulator::kOrders) {
      const emulator::ScopedSchedule schedule(copies, order);
      EXPECT_TRUE(GroupedIsDense({5, 0, 12}, 1160, 24, GroupedKernel::kSkinny1, 1));
      EXPECT_TRUE(GroupedIsDense({5, 0, 12}, 1160, 24, GroupedKernel::kWide, 1));
      const CodeForm fp4{.code = WeightCode::kE2m1, .group = 32};
      for (const auto kernel : {GroupedKernel::kSkinny1, GroupedKernel::kSkinny4}) {
        EXPECT_TRUE(GroupedCodesAreDense(fp4, {5, 0, 12}, 1160, 24, kernel, 1));
      }
    }
  }
}

TEST(GroupedGemm, RoomIsForTheKernelThatIsChosen) {
  const GroupedWeight weight{.outputs = 1536, .inputs = 2048, .experts = 128};
  EXPECT_EQ(GroupedFloats(weight, 64), 64 * 4 * 1536);  // four slices
  EXPECT_EQ(GroupedFloats(weight, 100000), 100000 * 1536);
  // Some steps have fewer pairs, whose slices take more.
  EXPECT_EQ(GroupedFloats(weight, 5000), 32 * 128 * 4 * 1536);
  GroupedWeight quantised = weight;
  quantised.section_count = 1;
  EXPECT_EQ(GroupedFloats(quantised, 5000), 5000 * 4 * 1536);
  EXPECT_EQ(GroupedFloats(quantised, 10000), 65 * 128 * 4 * 1536);
}

TEST(CudaExperts, ClampedGatesAreWhatTheOracleSays) {
  for (const bool bias : {false, true}) {
    EXPECT_LT(ClampedGateDeviation(7, 40, 1, bias, 1), 6e-3);
    EXPECT_LT(ClampedGateDeviation(3, 1096, 3, bias, 2), 6e-3);  // several blocks for a pair
  }
}

TEST(CudaExperts, MixesAreExact) {
  EXPECT_TRUE(MixIsExact({}, 1));
  EXPECT_TRUE(MixIsExact({.rows = 5, .width = 1096, .per_token = 8, .slices = 3}, 2));
  EXPECT_TRUE(MixIsExact({.rows = 5, .width = 1096, .per_token = 3, .slices = 2, .bias = true}, 4));
  EXPECT_TRUE(
      MixIsExact({.rows = 4, .per_token = 1, .slices = 2, .sorted = false, .adds = true}, 3));
}

}  // namespace
}  // namespace penstock::cuda
