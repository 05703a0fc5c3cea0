// Which requests there are, and when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lab/fake/temp_folder.h"
#include "lab/load/requests.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

std::vector<LoadRequest> All(const SyntheticLoad& load) {
  std::vector<LoadRequest> all;
  const auto source = MakeSyntheticSource(load);
  while (auto request = source->Next()) all.push_back(*std::move(request));
  return all;
}

// Mean and coefficient of variation of the gaps.
std::pair<double, double> Gaps(const std::vector<LoadRequest>& requests) {
  std::vector<double> gaps;
  for (size_t i = 1; i < requests.size(); ++i) {
    gaps.push_back(requests[i].at_s - requests[i - 1].at_s);
  }
  double mean = 0;
  for (const double gap : gaps) mean += gap / static_cast<double>(gaps.size());
  double variance = 0;
  for (const double gap : gaps) {
    variance += (gap - mean) * (gap - mean) / static_cast<double>(gaps.size());
  }
  return {mean, std::sqrt(variance) / mean};
}

TEST(Synthetic, GapsAreGammaDistributed) {
  // A gamma distribution of shape k has a coefficient of variation of 1 / sqrt(k).
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const auto [mean, variation] =
        Gaps(All({.requests = 40'000, .rate = 50, .burstiness = burstiness, .seed = 3}));
    EXPECT_NEAR(mean, 0.02, 0.0006) << burstiness;
    EXPECT_NEAR(variation, 1 / std::sqrt(burstiness), 0.05 / std::sqrt(burstiness));
  }
}

TEST(Synthetic, WithoutARateAllComeAtOnce) {
  for (const double rate : {0.0, std::numeric_limits<double>::infinity()}) {
    for (const LoadRequest& request : All({.requests = 10, .rate = rate})) {
      EXPECT_EQ(request.at_s, 0);
    }
  }
}

TEST(Synthetic, TheSameSeedIsTheSameLoad) {
  const SyntheticLoad load{.requests = 50, .prompt_tokens = {1, 90}, .rate = 5, .seed = 7};
  const auto one = All(load);
  const auto two = All(load);
  SyntheticLoad other = load;
  other.seed = 8;
  const auto three = All(other);
  ASSERT_EQ(one.size(), 50u);
  int equal = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].at_s, two[i].at_s);
    EXPECT_EQ(PromptIds(one[i], {.seed = 7}), PromptIds(two[i], {.seed = 7}));
    equal += PromptIds(one[i], {.seed = 7}) == PromptIds(three[i], {.seed = 8}) ? 1 : 0;
  }
  EXPECT_EQ(equal, 0);
}

TEST(Synthetic, SharesWhatItSaysAndNothingElse) {
  const auto all = All({.requests = 200,
                        .prompt_tokens = {20, 40},
                        .output_tokens = {3, 5},
                        .shared_tokens = 32,
                        .prefixes = 4});
  std::set<std::vector<uint32_t>> beginnings, rests;
  for (const LoadRequest& request : all) {
    EXPECT_GE(request.prompt_tokens(), 52u);
    EXPECT_LE(request.prompt_tokens(), 72u);
    EXPECT_GE(request.output_tokens, 3u);
    EXPECT_LE(request.output_tokens, 5u);
    const std::vector<uint32_t> ids = PromptIds(request, {.first_id = 10, .last_id = 19});
    EXPECT_EQ(ids.size(), request.prompt_tokens());
    for (const uint32_t id : ids) EXPECT_TRUE(id >= 10 && id <= 19) << id;
    beginnings.insert({ids.begin(), ids.begin() + 32});
    rests.insert({ids.begin() + 32, ids.end()});
  }
  EXPECT_EQ(beginnings.size(), 4u);
  EXPECT_EQ(rests.size(), all.size());
}

TEST(Prompts, TextHasAWordAToken) {
  const LoadRequest request{.prompt = {{.id = 4, .tokens = 3}, {.id = 5, .tokens = 2}}};
  const LoadRequest longer{.prompt = {{.id = 4, .tokens = 3}, {.id = 6, .tokens = 9}}};
  const std::string text = PromptText(request, {});
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 4);
  const std::string shared = PromptText({.prompt = {{.id = 4, .tokens = 3}}}, {});
  EXPECT_THAT(text, ::testing::StartsWith(shared));
  EXPECT_THAT(PromptText(longer, {}), ::testing::StartsWith(shared));
}

class TraceTest : public ::testing::Test {
 protected:
  absl::StatusOr<LoadedTrace> Load(const std::string& text, TraceLoad load = {}) {
    load.path = folder_.Write("trace", text);
    return LoadRequestTrace(load);
  }

  const TempFolder folder_;
};

constexpr char kRows[] =
    R"({"timestamp": 3000, "input_length": 40, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 33, "output_length": 6, "hash_ids": [0, 1, 3]}
{"timestamp": 6000.5, "input_length": 16, "output_length": 7, "hash_ids": [0]}
{"timestamp": 9000, "input_length": 500, "output_length": 8, "hash_ids": [0, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39]}
)";

TEST_F(TraceTest, EqualIdsAreEqualBlocks) {
  const auto trace = Load(kRows);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->block_tokens, 16u);
  ASSERT_EQ(trace->requests.size(), 4u);
  const auto first = PromptIds(trace->requests[0], {});
  const auto second = PromptIds(trace->requests[1], {});
  EXPECT_EQ(first.size(), 40u);
  EXPECT_EQ(second.size(), 33u);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 32, second.begin()));
  EXPECT_NE(first[32], second[32]);
  EXPECT_EQ(trace->requests[1].output_tokens, 6u);
}

TEST_F(TraceTest, TicksAreSpreadAndSped) {
  const auto trace = Load(kRows, {.speed = 2});
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_DOUBLE_EQ(trace->requests[0].at_s, 0);
  EXPECT_NEAR(trace->requests[1].at_s, 1.50025 / 2, 1e-9);
  EXPECT_NEAR(trace->requests[2].at_s, 3.0005 / 2, 1e-9);
  EXPECT_NEAR(trace->requests[3].at_s, 6.0 / 2, 1e-9);
  const auto ticks = Load(kRows, {.spread = false});
  EXPECT_DOUBLE_EQ(ticks->requests[1].at_s, 0);
}

TEST_F(TraceTest, LongRowsAreLeftOutAndCounted) {
  const auto trace = Load(kRows, {.longest = 45});
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->requests.size(), 3u);
  EXPECT_EQ(trace->left_out, 1u);
  EXPECT_THAT(Load(kRows, {.longest = 3}).status().ToString(), HasSubstr("no row has at most 3"));
  EXPECT_EQ(Load(kRows, {.requests = 2})->requests.size(), 2u);
}

TEST_F(TraceTest, WhatIsWrongIsNamedWithItsLine) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "has no requests"},
      {"[]\n", "line 1: not a JSON object"},
      {std::string(kRows) + "{\"timestamp\": 1}\n", "line 5: input_length"},
      {R"({"timestamp": "a"})", "timestamp must be a number"},
      {R"({"timestamp": 1, "input_length": 0, "output_length": 1, "hash_ids": [1]})", "1 to"},
      {R"({"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": []})", "hash_ids"},
      {R"({"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": [-1]})", "holds -1"},
      {R"({"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": [1, 2, 3]})",
       "fit no block size"}};
  for (const auto& [text, words] : cases) {
    EXPECT_THAT(Load(text).status().ToString(), HasSubstr(words)) << text;
  }
  EXPECT_TRUE(absl::IsNotFound(LoadRequestTrace({.path = "/nowhere/trace"}).status()));
}

}  // namespace
}  // namespace penstock
