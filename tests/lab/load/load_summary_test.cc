// The definitions of the field, on requests whose figures are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lab/fake/temp_folder.h"
#include "lab/load/report.h"
#include "lab/load/summary.h"
#include "tests/support/files.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

TimePoint At(double ms) { return TimePoint(Duration(static_cast<int64_t>(ms * 1e6))); }

// Sent at `sent` ms, pieces of one token at the others.
LoadRecord Answer(double sent, const std::vector<double>& tokens) {
  LoadRecord record{.planned = At(sent - 1), .sent = At(sent)};
  for (const double ms : tokens) record.OnTokens(At(ms), 1);
  record.end = At(tokens.back() + 1);
  record.result = LoadResult::kGood;
  record.has_usage = true;
  record.prompt_tokens = 10;
  record.cached_tokens = 4;
  record.output_tokens = record.asked_output_tokens = static_cast<uint32_t>(tokens.size());
  return record;
}

LoadOutcome Example() {
  LoadOutcome outcome{.start = At(0), .seconds = 2};
  outcome.records.push_back(Answer(100, {150, 160, 190}));  // ttft 50, tpot 20, e2el 90
  outcome.records.push_back(Answer(200, {350, 400}));       // 150, 50, 200
  outcome.records.push_back(Answer(300, {400}));            // 100, none, 100
  LoadRecord failed{.planned = At(0), .sent = At(400), .end = At(500)};
  failed.Fail("503 overloaded", "no room");
  outcome.records.push_back(failed);
  LoadRecord cut{.planned = At(400), .sent = At(400), .end = At(500)};
  outcome.records.push_back(cut);
  return outcome;
}

TEST(Summary, HasTheFieldsDefinitions) {
  const LoadSummary summary = Summarise(Example(), *ParseLoadSlo("ttft:120,tpot:30"));
  EXPECT_EQ(summary.completed, 3u);
  EXPECT_EQ(summary.failed, 1u);
  EXPECT_EQ(summary.unfinished, 1u);
  EXPECT_EQ(summary.input_tokens, 30u);
  EXPECT_EQ(summary.cached_tokens, 12u);
  EXPECT_EQ(summary.output_tokens, 6u);
  EXPECT_DOUBLE_EQ(summary.request_throughput, 1.5);
  EXPECT_DOUBLE_EQ(*summary.request_goodput, 1.0);  // the second breaks both limits
  EXPECT_DOUBLE_EQ(summary.output_throughput, 3);
  EXPECT_DOUBLE_EQ(summary.total_token_throughput, 18);
  EXPECT_DOUBLE_EQ(summary.ttft_ms.mean, 100);
  EXPECT_DOUBLE_EQ(summary.ttft_ms.median, 100);
  EXPECT_NEAR(summary.ttft_ms.std, 40.8248, 1e-3);
  EXPECT_DOUBLE_EQ(summary.ttft_ms.p90, 140);  // NumPy's percentile
  EXPECT_DOUBLE_EQ(summary.ttft_ms.p99, 149);
  EXPECT_DOUBLE_EQ(summary.tpot_ms.mean, 35);  // of the two that have more than one token
  EXPECT_DOUBLE_EQ(summary.itl_ms.mean, 30);   // 10, 30, 50
  EXPECT_DOUBLE_EQ(summary.itl_ms.max, 50);
  EXPECT_DOUBLE_EQ(summary.e2el_ms.mean, 130);
  EXPECT_DOUBLE_EQ(summary.late_ms.max, 400);  // the failed one; none is left out
  EXPECT_EQ(summary.running_max, 4u);          // at 400 ms all but the first
  EXPECT_DOUBLE_EQ(summary.output_tokens_per_s_max, 6);
  EXPECT_EQ(summary.errors.at("503 overloaded").count, 1u);
  EXPECT_EQ(summary.count_mismatches + summary.without_usage + summary.short_answers, 0u);
}

TEST(Summary, TellsWhereCountsDiffer) {
  LoadOutcome outcome{.seconds = 1};
  outcome.records.push_back(Answer(0, {1, 2, 3}));
  outcome.records.back().output_tokens = 2;  // usage says less than came
  outcome.records.push_back(Answer(0, {1, 2, 3}));
  outcome.records.back().output_tokens = 4;  // and more; but pieces of text may hold several
  outcome.records.back().exact_count = false;
  outcome.records.push_back(Answer(0, {1, 2}));
  outcome.records.back().has_usage = false;
  outcome.records.back().asked_output_tokens = 9;
  const LoadSummary summary = Summarise(outcome, {});
  EXPECT_EQ(summary.count_mismatches, 1u);
  EXPECT_EQ(summary.without_usage, 1u);
  EXPECT_EQ(summary.short_answers, 2u);
  EXPECT_FALSE(summary.request_goodput.has_value());
}

TEST(Summary, OfNothingIsZero) {
  const LoadSummary summary = Summarise({}, {});
  EXPECT_EQ(summary.completed, 0u);
  EXPECT_EQ(summary.ttft_ms.p99, 0);
  EXPECT_EQ(summary.running_max, 0u);
}

TEST(Slo, SaysWhatIsNoLimit) {
  const auto slo = ParseLoadSlo("e2el:5000.5");
  ASSERT_TRUE(slo.ok());
  EXPECT_DOUBLE_EQ(*slo->e2el_ms, 5000.5);
  EXPECT_FALSE(slo->ttft_ms.has_value());
  EXPECT_FALSE(ParseLoadSlo("")->any());
  for (const char* text : {"ttft", "ttft:", "ttft:x", "ttft:-1", "itl:3", "ttft:1;tpot:2",
                           "ttft:inf", "ttft:1,,tpot:2"}) {
    EXPECT_THAT(ParseLoadSlo(text).status().ToString(), HasSubstr("is no limit")) << text;
  }
}

TEST(Series, PutsTokensWhereTheyCame) {
  const LoadSeries series = SeriesOf(Example(), 0.1);
  EXPECT_EQ(series.output_tokens.size(), 21u);
  EXPECT_EQ(series.output_tokens[1], 3);
  EXPECT_EQ(series.output_tokens[3] + series.output_tokens[4], 3);
  double requests = 0;
  for (const double value : series.requests) requests += value;
  EXPECT_EQ(requests, 3);
}

TEST(Report, HasTheNamesThatToolsRead) {
  const LoadOutcome outcome = Example();
  const LoadDescription description{.backend = "openai",
                                    .model = "tiny",
                                    .date = "20261122-014316",
                                    .workload = "w",
                                    .rate = std::numeric_limits<double>::infinity(),
                                    .prompts = 5};
  const auto json = nlohmann::json::parse(
      LoadJson(description, outcome, Summarise(outcome, *ParseLoadSlo("ttft:120")), true));
  EXPECT_EQ(json["request_rate"], "inf");
  EXPECT_EQ(json["max_concurrency"], nullptr);
  for (const char* name : {"date",
                           "backend",
                           "model_id",
                           "tokenizer_id",
                           "num_prompts",
                           "burstiness",
                           "duration",
                           "completed",
                           "failed",
                           "total_input_tokens",
                           "total_output_tokens",
                           "request_throughput",
                           "request_goodput",
                           "output_throughput",
                           "total_token_throughput",
                           "input_lens",
                           "output_lens",
                           "ttfts",
                           "itls",
                           "start_times",
                           "errors",
                           "error_counts"}) {
    EXPECT_TRUE(json.contains(name)) << name;
  }
  for (const char* figure : {"ttft", "tpot", "itl", "e2el"}) {
    for (const char* of : {"mean", "median", "std", "p50", "p90", "p95", "p99"}) {
      const std::string name = fmt::format("{}_{}_ms", of, figure);
      ASSERT_TRUE(json.contains(name)) << name;
      EXPECT_TRUE(json[name].is_number()) << name;
    }
  }
  EXPECT_EQ(json["ttfts"].size(), 5u);
  EXPECT_DOUBLE_EQ(json["ttfts"][0], 0.05);
  EXPECT_EQ(json["errors"][3], "503 overloaded");
  EXPECT_EQ(json["errors"][4], "unfinished");
  EXPECT_EQ(json["error_counts"]["503 overloaded"], 1);
}

TEST(Report, DrawsWhateverThereIs) {
  const TempFolder folder;
  const std::string path = folder.path() + "/load.svg";
  for (const LoadOutcome& outcome : {Example(), LoadOutcome{.seconds = 0.5}}) {
    ASSERT_TRUE(WriteLoadPlot({.model = "a<b", .workload = "w"}, outcome, path).ok());
    const std::string svg = ReadFile(path);
    EXPECT_THAT(svg, HasSubstr("a&lt;b"));
    EXPECT_THAT(svg, ::testing::EndsWith("</svg>\n"));
    EXPECT_THAT(svg, ::testing::Not(HasSubstr("nan")));
    EXPECT_THAT(svg, ::testing::Not(HasSubstr("inf")));
  }
  EXPECT_FALSE(WriteLoadPlot({}, Example(), "/nowhere/plot.svg").ok());
}

}  // namespace
}  // namespace penstock
