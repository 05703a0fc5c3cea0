#include "decode_worker/beams/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/environment.h"

// The search by itself, over models whose logits depend on the last token alone.
namespace penstock {
namespace {

using nlohmann::json;

using Table = std::vector<std::vector<float>>;  // logits by the last token

// What the engine keeps for a beam.
struct Path {
  Sampler sampler;
  uint32_t last = 0;
};

std::vector<BeamAnswer> Search(const Table& table, const std::vector<uint32_t>& prompt,
                               const SamplingParams& params, const BeamRules& rules) {
  BeamSearch search(rules);
  std::vector<Path> paths;
  paths.push_back({Sampler(params, 0, prompt), prompt.back()});
  while (!search.ended()) {
    for (size_t i = 0; i < paths.size(); ++i) {
      std::vector<float> logits = table[paths[i].last];
      auto ranked = paths[i].sampler.Rank(logits, static_cast<size_t>(rules.candidates()));
      EXPECT_TRUE(ranked.ok()) << ranked.status();
      EXPECT_FALSE(search.complete());
      search.Offer(static_cast<int32_t>(i), *std::move(ranked));
    }
    const auto children = search.Advance();
    EXPECT_TRUE(children.ok()) << children.status();
    std::vector<Path> next;
    for (const BeamChild& child : *children) {
      next.push_back({paths[static_cast<size_t>(child.parent)].sampler.Fork(), child.token});
      next.back().sampler.Observe(child.token);
    }
    paths = std::move(next);
  }
  return search.TakeAnswers();
}

std::vector<uint32_t> IdsOf(const BeamAnswer& answer) {
  std::vector<uint32_t> ids;
  for (const BeamToken& token : answer.tokens) ids.push_back(token.id);
  return ids;
}

EarlyStopping EarlyStoppingOf(const json& value) {
  if (value.is_string()) return EarlyStopping::kImpossible;
  return value.get<bool>() ? EarlyStopping::kAtOnce : EarlyStopping::kUnlikely;
}

TEST(BeamSearchTest, FindsWhatTransformersFinds) {
  std::ifstream file(SourceFolder() + "/tests/golden/beams.json");
  const json golden = json::parse(file);
  const auto models = golden["models"].get<std::vector<Table>>();
  ASSERT_GT(golden["cases"].size(), 200u);
  for (const json& one : golden["cases"]) {
    SCOPED_TRACE(one.dump());
    const auto expected = one["answers"].get<std::vector<std::vector<uint32_t>>>();
    const BeamRules rules{.width = one["width"],
                          .answers = static_cast<int32_t>(expected.size()),
                          .length_penalty = one["length_penalty"],
                          .early_stopping = EarlyStoppingOf(one["early_stopping"]),
                          .tokens_max = one["tokens"],
                          .stop_token_ids = one["stops"]};
    const auto found = Search(models[one["model"]], one["prompt"].get<std::vector<uint32_t>>(),
                              {.repetition_penalty = one["repetition_penalty"]}, rules);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(IdsOf(found[i]), expected[i]) << i;
      EXPECT_NEAR(found[i].score, one["scores"][i].get<double>(), 1e-3) << i;
      const bool stops = std::ranges::count(rules.stop_token_ids, found[i].tokens.back().id) > 0;
      EXPECT_EQ(found[i].stopped, stops);
    }
  }
}

TEST(BeamSearchTest, TooFewFiniteScoresAreAnError) {
  BeamSearch search({.width = 4, .tokens_max = 5, .stop_token_ids = {3}});
  Sampler sampler({}, 0, {});
  std::vector<float> logits = {0, 1, -INFINITY, 2, NAN, 1};
  auto ranked = sampler.Rank(logits, 8);
  ASSERT_TRUE(ranked.ok());
  ASSERT_EQ(ranked->best.size(), 4u);  // one of them is the stop token
  search.Offer(0, *std::move(ranked));
  EXPECT_TRUE(absl::IsInternal(search.Advance().status()));
}

TEST(BeamSearchTest, DroppedOffersAreMadeAgain) {
  BeamSearch search({.width = 1, .tokens_max = 5});
  Sampler sampler({}, 0, {});
  std::vector<float> logits = {0, 1, 2};
  search.Offer(0, *sampler.Rank(logits, 2));
  EXPECT_TRUE(search.complete());
  search.DropOffers();
  EXPECT_FALSE(search.complete());
}

}  // namespace
}  // namespace penstock
