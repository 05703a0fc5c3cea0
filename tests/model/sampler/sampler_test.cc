#include "model/sampler/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

namespace penstock {
namespace {

using ::testing::HasSubstr;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomLogits(size_t vocab, uint32_t seed, float deviation = 2.0f) {
  std::mt19937 random(seed);
  std::vector<float> logits(vocab);
  // Sums of uniform draws: the same on every standard library, which std::normal_distribution is
  // not.
  for (float& logit : logits) {
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += static_cast<double>(random()) / 4294967296.0 - 0.5;
    logit = static_cast<float>(sum) * deviation;
  }
  return logits;
}

SampledToken SampleOnce(const SamplingParams& params, std::vector<float> logits,
                        std::span<const uint32_t> prompt = {}) {
  return Sampler(params, 0, prompt).Sample(logits);
}

// softmax(logits / temperature) cut as the header says, by sorting and in double.
std::vector<double> Expected(const SamplingParams& params, const std::vector<float>& logits) {
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
  std::vector<double> p(logits.size());
  for (size_t i = 0; i < p.size(); i++) {
    p[i] = std::exp((static_cast<double>(logits[i]) - logits[order[0]]) / params.temperature);
  }
  size_t kept = order.size();
  if (params.top_k > 0) kept = std::min<size_t>(kept, params.top_k);
  const auto sum_of = [&](size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += p[order[i]];
    return sum;
  };
  if (params.top_p < 1) {
    const double need = sum_of(kept) * params.top_p;
    size_t count = 0;
    for (double sum = 0; sum < need; count++) sum += p[order[count]];
    kept = count;
  }
  while (kept > 1 && p[order[kept - 1]] < params.min_p) kept--;
  const double total = sum_of(kept);
  std::vector<double> result(logits.size(), 0.0);
  for (size_t i = 0; i < kept; i++) result[order[i]] = p[order[i]] / total;
  return result;
}

std::vector<int> Draw(const SamplingParams& params, const std::vector<float>& logits, int draws) {
  std::vector<int> counts(logits.size(), 0);
  Sampler sampler(params, 0, {});
  for (int i = 0; i < draws; i++) {
    std::vector<float> copy = logits;
    counts[sampler.Sample(copy).id]++;
  }
  return counts;
}

// Pearson's statistic against `expected`, cells of less than 5 expected draws taken together, must
// stay below its mean plus five deviations. Seeds are fixed, so this either always passes or never.
void ExpectDistribution(const std::vector<int>& counts, const std::vector<double>& expected) {
  const int draws = std::accumulate(counts.begin(), counts.end(), 0);
  double statistic = 0, small_expected = 0;
  int cells = 0, small_count = 0;
  const auto add = [&](int count, double mean) {
    statistic += (count - mean) * (count - mean) / mean;
    cells++;
  };
  for (size_t id = 0; id < counts.size(); id++) {
    if (expected[id] == 0) {
      EXPECT_EQ(counts[id], 0) << "token " << id << " is cut away";
    } else if (expected[id] * draws < 5) {
      small_expected += expected[id] * draws;
      small_count += counts[id];
    } else {
      add(counts[id], expected[id] * draws);
    }
  }
  if (small_expected > 1) add(small_count, small_expected);
  const double freedom = std::max(1, cells - 1);
  EXPECT_LT(statistic, freedom + 5 * std::sqrt(2 * freedom)) << cells << " cells";
}

TEST(SamplerTest, GreedyTakesTheGreatestAndTheLowestIdOfEquals) {
  const SamplingParams greedy{.temperature = 0};
  EXPECT_EQ(SampleOnce(greedy, {1, 5, 3, 5, 2}).id, 1u);
  EXPECT_EQ(SampleOnce(greedy, {-3, -2, -1}).id, 2u);
  EXPECT_EQ(SampleOnce(greedy, {7}).id, 0u);
  EXPECT_EQ(SampleOnce(greedy, {-kInfinity, kNaN, -4}).id, 2u);
  EXPECT_EQ(SampleOnce(greedy, {0, kInfinity, kInfinity}).id, 1u);
}

struct DistributionCase {
  const char* name;
  SamplingParams params;
};
class SamplerDistributionTest : public testing::TestWithParam<DistributionCase> {};

TEST_P(SamplerDistributionTest, MatchesTheExactDistribution) {
  SamplingParams params = GetParam().params;
  for (uint32_t seed = 1; seed <= 3; seed++) {
    params.seed = seed * 0x123456789abcdefu;
    const auto logits = RandomLogits(60, seed);
    ExpectDistribution(Draw(params, logits, 20000), Expected(params, logits));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Knobs, SamplerDistributionTest,
    testing::Values(
        DistributionCase{"plain", {}}, DistributionCase{"cold", {.temperature = 0.3f}},
        DistributionCase{"hot", {.temperature = 2.0f}}, DistributionCase{"top_k_1", {.top_k = 1}},
        DistributionCase{"top_k_7", {.top_k = 7}}, DistributionCase{"top_k_all", {.top_k = 1000}},
        DistributionCase{"top_p_half", {.top_p = 0.5f}},
        DistributionCase{"top_p_max", {.top_p = 0.95f}},
        DistributionCase{"min_p", {.min_p = 0.08f}},
        DistributionCase{"k_then_p", {.top_p = 0.8f, .top_k = 12}},
        DistributionCase{"everything",
                         {.temperature = 1.3f, .top_p = 0.9f, .top_k = 20, .min_p = 0.05f}}),
    [](const auto& tested) { return tested.param.name; });

// Which tokens can come out, exactly, over vocabularies large enough for every bucket case.
TEST(SamplerTest, CutsKeepTheSetThatSortingKeeps) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; round++) {
    const size_t vocab = 1 + random() % 400;
    auto logits = RandomLogits(vocab, round, round % 2 == 0 ? 2.0f : 0.01f);
    if (round % 3 == 0) {  // many ties
      for (float& logit : logits) logit = std::round(logit);
    }
    const SamplingParams params{.temperature = 0.25f + 0.25f * static_cast<float>(random() % 8),
                                .top_p = random() % 2 == 0 ? 1.0f : 0.55f,
                                .top_k = static_cast<int32_t>(random() % 40),
                                .min_p = random() % 2 == 0 ? 0.0f : 0.2f,
                                .seed = random()};
    const auto expected = Expected(params, logits);
    Sampler sampler(params, 0, {});
    for (int i = 0; i < 50; i++) {
      std::vector<float> copy = logits;
      EXPECT_GT(expected[sampler.Sample(copy).id], 0) << "round " << round;
    }
  }
}

TEST(SamplerTest, EqualLogitsAtACutKeepTheLowestIds) {
  const std::vector<float> logits(100, 1.5f);
  const auto counts = Draw({.top_k = 3}, logits, 3000);
  EXPECT_EQ(counts[0] + counts[1] + counts[2], 3000);
  EXPECT_GT(*std::min_element(counts.begin(), counts.begin() + 3), 850);
  const auto nucleus = Draw({.top_p = 0.045f}, logits, 3000);  // 4.5 of 100: five tokens
  EXPECT_EQ(std::accumulate(nucleus.begin(), nucleus.begin() + 5, 0), 3000);
  EXPECT_GT(nucleus[4], 0);
}

TEST(SamplerTest, TheDrawDependsOnSeedPositionAndChoiceAlone) {
  const auto logits = RandomLogits(500, 3);
  const SamplingParams params{.seed = 99};
  Sampler one(params, 0, {});
  std::vector<uint32_t> tokens;
  for (int i = 0; i < 32; i++) {
    auto copy = logits;
    tokens.push_back(one.Sample(copy).id);
  }
  // A sampler that took over in the middle continues with the same tokens.
  for (size_t from : {1, 7, 31}) {
    Sampler other(params, 0, {});
    for (size_t i = 0; i < from; i++) other.Observe(tokens[i]);
    EXPECT_EQ(other.output_tokens(), static_cast<int32_t>(from));
    for (size_t i = from; i < tokens.size(); i++) {
      auto copy = logits;
      EXPECT_EQ(other.Sample(copy).id, tokens[i]);
    }
  }
  const auto sequence = [&](SamplingParams changed, uint32_t choice) {
    Sampler sampler(changed, choice, {});
    std::vector<uint32_t> ids;
    for (int i = 0; i < 32; i++) {
      auto copy = logits;
      ids.push_back(sampler.Sample(copy).id);
    }
    return ids;
  };
  EXPECT_NE(sequence(params, 1), tokens);
  EXPECT_NE(sequence({.seed = 98}, 0), tokens);
  EXPECT_NE(sequence({.seed = 99 + (uint64_t{1} << 32)}, 0), tokens);
}

// Pinned: these tokens must come out on every machine, build type and release.
TEST(SamplerTest, KnownTokens) {
  Sampler sampler({.temperature = 0.8f, .top_p = 0.95f, .top_k = 50, .seed = 1234}, 0, {});
  std::vector<uint32_t> ids;
  for (uint32_t i = 0; i < 8; i++) {
    auto logits = RandomLogits(32000, i);
    ids.push_back(sampler.Sample(logits).id);
  }
  EXPECT_THAT(ids, testing::ElementsAre(3708, 24415, 15841, 20854, 20959, 24194, 23542, 7812));
}

TEST(SamplerTest, LogprobsAreOfTheRawDistribution) {
  const auto logits = RandomLogits(300, 11);
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  const SamplingParams params{.temperature = 0.5f,
                              .top_k = 5,
                              .repetition_penalty = 1.7f,
                              .logit_bias = {{17, 3.0f}},
                              .top_logprobs = 20};
  const std::vector<uint32_t> prompt = {3, 17, 3, 250};
  const SampledToken sampled = SampleOnce(params, logits, prompt);
  EXPECT_NEAR(sampled.logprob, logits[sampled.id] - std::log(total), 1e-6);
  ASSERT_EQ(sampled.top.size(), 20u);
  std::vector<float> sorted = logits;
  std::ranges::sort(sorted, std::greater<>());
  for (size_t i = 0; i < sampled.top.size(); i++) {
    EXPECT_EQ(logits[sampled.top[i].id], sorted[i]);
    EXPECT_NEAR(sampled.top[i].logprob, sorted[i] - std::log(total), 1e-6);
  }
}

TEST(SamplerTest, TopLogprobsOfFewerTokensThanAsked) {
  const SampledToken sampled = SampleOnce({.temperature = 0, .top_logprobs = 5}, {1, 2, 2});
  ASSERT_EQ(sampled.top.size(), 3u);
  EXPECT_EQ(sampled.top[0].id, 1u);
  EXPECT_EQ(sampled.top[1].id, 2u);
  EXPECT_EQ(sampled.top[2].id, 0u);
}

// Each knob's effect on the logits, computed the slow way; greedy sampling shows the result.
std::vector<float> Penalized(const SamplingParams& params, std::vector<float> logits,
                             const std::vector<uint32_t>& prompt,
                             const std::vector<uint32_t>& output) {
  for (const auto& [id, bias] : params.logit_bias) logits[id] += bias;
  for (uint32_t id = 0; id < logits.size(); id++) {
    const auto in_output = std::ranges::count(output, id);
    if (in_output > 0 || std::ranges::count(prompt, id) > 0) {
      logits[id] = logits[id] > 0 ? logits[id] / params.repetition_penalty
                                  : logits[id] * params.repetition_penalty;
    }
    logits[id] -= static_cast<float>(in_output) * params.frequency_penalty;
    if (in_output > 0) logits[id] -= params.presence_penalty;
    if (static_cast<int32_t>(output.size()) < params.min_tokens &&
        std::ranges::count(params.stop_token_ids, id) > 0) {
      logits[id] = -kInfinity;
    }
  }
  return logits;
}

TEST(SamplerTest, PenaltiesBiasAndMinTokensMatchTheirDefinitions) {
  std::mt19937 random(21);
  const auto random_id = [&] { return static_cast<uint32_t>(random() % 40); };
  for (int round = 0; round < 100; round++) {
    const SamplingParams params{
        .temperature = 0,
        .frequency_penalty = static_cast<float>(random() % 9) * 0.25f - 1,
        .presence_penalty = static_cast<float>(random() % 9) * 0.25f - 1,
        .repetition_penalty = 0.5f + static_cast<float>(random() % 8) * 0.25f,
        .logit_bias = {{random_id(), 4.0f}, {random_id(), -9.0f}},
        .stop_token_ids = {random_id(), random_id(), random_id()},
        .min_tokens = static_cast<int32_t>(random() % 12)};
    std::vector<uint32_t> prompt(random() % 20), output;
    for (uint32_t& id : prompt) id = random_id();
    Sampler sampler(params, 0, prompt);
    for (int step = 0; step < 16; step++) {
      auto logits = RandomLogits(40, round * 100 + step);
      const auto expected = Penalized(params, logits, prompt, output);
      const uint32_t id = sampler.Sample(logits).id;
      EXPECT_EQ(id, std::ranges::max_element(expected) - expected.begin());
      output.push_back(id);
    }
  }
}

TEST(SamplerTest, HugeLogitsAndNoFiniteLogits) {
  const float huge = std::numeric_limits<float>::max();
  EXPECT_EQ(SampleOnce({.top_p = 0.9f}, {-huge, huge, 0}).id, 1u);
  EXPECT_EQ(SampleOnce({.repetition_penalty = 0.01f}, {0, huge}, std::vector<uint32_t>{1}).id, 1u);
  EXPECT_EQ(SampleOnce({}, {0, kInfinity, kNaN}).id, 1u);
  EXPECT_TRUE(std::isnan(SampleOnce({}, {kNaN, -kInfinity}).logprob));
  EXPECT_EQ(SampleOnce({.temperature = 1e-30f}, {1, 1.0000001f, 0}).id, 1u);
  const SamplingParams all_masked{.stop_token_ids = {0, 1}, .min_tokens = 1};
  EXPECT_LT(SampleOnce(all_masked, {1, 2}).id, 2u);
}

struct RefusedCase {
  SamplingParams params;
  const char* field;
};

TEST(ValidateSamplingTest, NamesTheFieldAndItsLimit) {
  EXPECT_TRUE(ValidateSampling({}, 100).ok());
  EXPECT_TRUE(
      ValidateSampling({.temperature = 0, .top_k = 1 << 30, .logit_bias = {{99, -100}}}, 100).ok());
  const std::vector<RefusedCase> cases = {
      {{.temperature = 2.1f}, "temperature is 2.1, allowed is 0 to 2"},
      {{.temperature = -0.1f}, "temperature"},
      {{.temperature = kNaN}, "temperature is nan"},
      {{.top_p = 0}, "top_p is 0, allowed is above 0 up to 1"},
      {{.top_p = 1.5f}, "top_p"},
      {{.top_p = kNaN}, "top_p"},
      {{.top_k = -1}, "top_k is -1"},
      {{.min_p = 1}, "min_p is 1, allowed is 0 to below 1"},
      {{.frequency_penalty = 2.5f}, "frequency_penalty"},
      {{.presence_penalty = -kInfinity}, "presence_penalty"},
      {{.repetition_penalty = 0}, "repetition_penalty is 0, allowed is 0.01 to 10"},
      {{.logit_bias = {{100, 1.0f}}}, "logit_bias has token id 100, the model's greatest is 99"},
      {{.logit_bias = {{7, 101.0f}}}, "logit_bias[7] is 101, allowed is -100 to 100"},
      {{.stop_token_ids = {4000000000u}}, "stop_token_ids has token id 4000000000"},
      {{.stop_token_ids = std::vector<uint32_t>(1025)}, "stop_token_ids has 1025 entries"},
      {{.min_tokens = -1}, "min_tokens"},
      {{.top_logprobs = 21}, "top_logprobs is 21, allowed is 0 to 20"},
  };
  for (const RefusedCase& refused : cases) {
    const absl::Status status = ValidateSampling(refused.params, 100);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(Message(status), HasSubstr(refused.field));
  }
}

// Allows a fixed set of tokens, and records what it observes.
class FixedConstraint final : public ConstraintSource {
 public:
  explicit FixedConstraint(std::vector<uint32_t> bits) : bits_(std::move(bits)) {}

  class Opened final : public TokenConstraint {
   public:
    explicit Opened(const FixedConstraint& source) : source_(source) {}
    void Observe(uint32_t token) override { source_.observed.push_back(token); }
    absl::StatusOr<std::span<const uint32_t>> Allowed() override {
      if (source_.bits_.empty()) return Internal("broken");
      return std::span<const uint32_t>(source_.bits_);
    }

   private:
    const FixedConstraint& source_;
  };
  std::unique_ptr<TokenConstraint> Open() const override { return std::make_unique<Opened>(*this); }

  mutable std::vector<uint32_t> observed;

 private:
  std::vector<uint32_t> bits_;
};

TEST(Constraint, LeavesTheAllowedTokensAlone) {
  const auto constraint =
      std::make_shared<FixedConstraint>(std::vector<uint32_t>{1u << 3 | 1u << 5, 1u});
  SamplingParams params{.temperature = 0, .constraint = constraint};
  std::vector<float> logits(40);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 35);
  EXPECT_EQ(SampleOnce(params, logits).id, 32u);
  logits[32] = -5;
  EXPECT_EQ(SampleOnce(params, logits).id, 5u);
  EXPECT_EQ(constraint->observed, (std::vector<uint32_t>{32, 5}));
  Sampler sampler(params, 0, {});
  EXPECT_TRUE(sampler.OwnDraws().empty());  // a device has no mask
  sampler.Observe(3);
  EXPECT_EQ(constraint->observed.back(), 3u);
}

// The log-probability is the model's own, as if nothing were masked.
TEST(Constraint, ChangesNoLogProbability) {
  const std::vector<float> logits = RandomLogits(64, 5);
  const auto all = std::make_shared<FixedConstraint>(std::vector<uint32_t>{~0u, ~0u});
  const auto one = std::make_shared<FixedConstraint>(std::vector<uint32_t>{0, 1u << 7});
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const SampledToken free = SampleOnce({.seed = seed, .top_logprobs = 3}, logits);
    const SampledToken open =
        SampleOnce({.seed = seed, .top_logprobs = 3, .constraint = all}, logits);
    EXPECT_EQ(free.id, open.id);
    EXPECT_EQ(free.logprob, open.logprob);
    const SampledToken forced =
        SampleOnce({.seed = seed, .top_logprobs = 3, .constraint = one}, logits);
    EXPECT_EQ(forced.id, 39u);
    EXPECT_EQ(forced.top.at(0).id, free.top.at(0).id);
    EXPECT_NEAR(forced.logprob - free.logprob, logits[39] - logits[free.id], 1e-4);
  }
}

TEST(Constraint, IsStrongerThanBiasAndMinTokens) {
  const auto stop_only = std::make_shared<FixedConstraint>(std::vector<uint32_t>{1u << 2});
  const SamplingParams params{.temperature = 0,
                              .logit_bias = {{4, 100.0f}},
                              .stop_token_ids = {2},
                              .min_tokens = 9,
                              .constraint = stop_only};
  EXPECT_EQ(SampleOnce(params, {0, 0, 0, 0, 0}).id, 2u);
  SamplingParams more = params;
  more.constraint = std::make_shared<FixedConstraint>(std::vector<uint32_t>{1u << 2 | 1u << 1});
  EXPECT_EQ(SampleOnce(more, {0, -9, 0, 0, 0}).id, 1u);  // min_tokens holds where it can
}

TEST(Constraint, FailsRatherThanDrawWhatIsNotAllowed) {
  SamplingParams params{.constraint = std::make_shared<FixedConstraint>(std::vector<uint32_t>{})};
  Sampler broken(params, 0, {});
  std::vector<float> logits = {1, 2, 3};
  EXPECT_TRUE(std::isnan(broken.Sample(logits).logprob));
  EXPECT_THAT(std::string(broken.failure().message()), HasSubstr("broken"));
  params.constraint = std::make_shared<FixedConstraint>(std::vector<uint32_t>{1u << 1});
  Sampler impossible(params, 0, {});
  logits = {1, -kInfinity, 3};
  EXPECT_TRUE(std::isnan(impossible.Sample(logits).logprob));
  EXPECT_THAT(std::string(impossible.failure().message()), HasSubstr("finite logit"));
}

}  // namespace
}  // namespace penstock
