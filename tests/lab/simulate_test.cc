#include <gtest/gtest.h>

#include <random>
#include <string>

#include "lab/simulate/sim_options.h"
#include "lab/simulate/sim_policy.h"
#include "tests/lab/trace_file.h"

namespace penstock {
namespace {

SimResult RunOnce(const SimSource& source, const SimOptions& options) {
  auto result = Simulate({source, options});
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : SimResult{};
}

TEST(SimMessage, AJobAndAResultComeBackAsTheyWent) {
  SimJob job{.source = {.path = "a \"trace\"", .copies = 3}, .options = {.workers = 7}};
  job.options.policy = "dynamo";
  job.options.shared_stores = true;
  job.options.step.ms_per_sequence = 0.25;
  const auto parsed = ParseJob(JobText(job));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(JobText(*parsed), JobText(job));
  EXPECT_EQ(parsed->source.path, job.source.path);
  EXPECT_EQ(parsed->options.workers, 7u);
  EXPECT_EQ(parsed->options.step.ms_per_sequence, 0.25);
  EXPECT_FALSE(ParseJob("{}").ok());
  const auto result = ParseResult(ResultText(SimResult{.slo = 0.5, .ttft_s = {1, 2}}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->slo, 0.5);
  EXPECT_EQ(result->ttft_s, (std::vector<float>{1, 2}));
  EXPECT_EQ(ParseResult(ResultText(InvalidArgument("no"))).status(), InvalidArgument("no"));
  EXPECT_FALSE(ParseResult("").ok());
}

// One worker and so little load that every prompt is done before the next one comes: every block
// that fits is found again, and the times are those of the model.
TEST(Simulate, OneIdleWorkerTakesTheTimesOfItsModel) {
  SimTrace trace;
  for (uint32_t i = 0; i < 40; ++i) {
    trace.requests.push_back({.arrival_s = 5.0 * i,
                              .prompt_tokens = 4 * trace.block_tokens,
                              .answer_tokens = 11,
                              .blocks = {0, 1, 2, 3 + i}});
  }
  const TraceFile file(trace);
  const SimOptions options{.workers = 1, .decode_workers = 1, .cache_blocks = 2000, .speed = 1};
  const SimResult result = RunOnce(file.source(), options);
  EXPECT_EQ(result.failed, 0);
  EXPECT_EQ(result.slo, 1);
  EXPECT_EQ(result.busy_over_mean, 1);
  EXPECT_NEAR(result.block_hit, 39 * 3 / 160.0, 1e-9);
  const double cold_s = options.prefill.Ms(2048, 0) / 1000;
  const double warm_s = options.prefill.Ms(2048, 1536) / 1000;
  EXPECT_NEAR(result.ttft_s.back(), cold_s, 0.005);
  EXPECT_NEAR(result.ttft_p50_s, warm_s, 0.005);
  // Between the first token and the second, the handoff takes time, too.
  EXPECT_NEAR(result.tpot_p50_ms, options.step.Ms(1, 2053), 5);
  EXPECT_GT(result.tpot_p50_ms, options.step.Ms(1, 2048));
}

TEST(Simulate, TheSameSeedGivesTheSameRun) {
  const SimSource source{.synthetic = {.requests = 200}};
  const SimOptions options{.workers = 8, .decode_workers = 2, .cache_blocks = 4000, .seed = 3};
  const SimResult a = RunOnce(source, options);
  const SimResult b = RunOnce(source, options);
  EXPECT_EQ(a.ttft_s, b.ttft_s);
  EXPECT_EQ(a.tpot_p99_ms, b.tpot_p99_ms);
  EXPECT_GT(a.tpot_p50_ms, 0);
}

TEST(Simulate, ErrorsNameWhatIsWrong) {
  EXPECT_NE(Simulate({{}, {.policy = "best"}}).status().message().find("dynamo"),
            std::string::npos);
  EXPECT_FALSE(Simulate({{}, {.workers = 0}}).ok());
  const auto missing = Simulate({{.path = "/nowhere/trace.jsonl"}, {}});
  EXPECT_NE(missing.status().message().find("/nowhere/trace.jsonl"), std::string::npos);
}

class PolicyTest : public ::testing::Test {
 protected:
  SimResult Of(const std::string& policy, bool shared = false) {
    return RunOnce(source_, {.workers = 16,
                             .cache_blocks = 12'000,
                             .policy = policy,
                             .shared_stores = shared,
                             .rho = 1.1});
  }
  const SimSource source_{.synthetic = {.requests = 3000}};
};

TEST_F(PolicyTest, PlacementKeepsPrefixesTogetherAndWorkersBusyAlike) {
  const SimResult ours = Of("penstock");
  const SimResult queue_only = Of("shortest-queue");
  const SimResult ttft_min = Of("least-ttft");
  EXPECT_EQ(ours.failed, 0);
  EXPECT_GT(ours.block_hit, 1.5 * queue_only.block_hit);
  EXPECT_GE(ours.block_hit, ttft_min.block_hit);
  EXPECT_GE(ours.slo, ttft_min.slo - 0.005);
  EXPECT_LT(ours.busy_over_mean, 1.15);
  EXPECT_LT(ours.ttft_error_p50, 0.1);
}

TEST_F(PolicyTest, WorkersReadEachOthersStores) {
  const SimResult shared = Of("penstock", /*shared=*/true);
  EXPECT_EQ(shared.failed, 0);
  EXPECT_GT(shared.pulled, 0.1);
}

// Block 0 is in every prompt: whoever follows the longest match alone sends everything to one
// worker.
TEST_F(PolicyTest, OneSystemPromptForAllIsNoMagnet) {
  // Few requests, because one worker takes hours for those of sixteen.
  const SimResult magnet =
      RunOnce({.synthetic = {.requests = 300}},
              {.workers = 16, .cache_blocks = 12'000, .policy = "longest-match"});
  EXPECT_GT(magnet.busy_over_mean, 2);
  const SimResult ours = RunOnce({.synthetic = {.requests = 3000, .universal_blocks = 8}},
                                 {.workers = 16, .cache_blocks = 12'000, .policy = "penstock"});
  EXPECT_LT(ours.busy_over_mean, 1.15);
  EXPECT_GT(ours.slo, 0.95);
}

// While queues are nearly empty, only time spreads such a prompt.
TEST_F(PolicyTest, OneSystemPromptForAllSpreadsAtLowLoadToo) {
  SimTrace trace;
  std::mt19937_64 random(3);
  std::exponential_distribution<double> gap(20);
  trace.unique_blocks = 8;
  for (double at = 0; trace.requests.size() < 4000; at += gap(random)) {
    SimRequest request{.arrival_s = at, .answer_tokens = 100, .blocks = {0, 1, 2, 3, 4, 5, 6, 7}};
    for (uint64_t more = 1 + random() % 4; more > 0; --more) {
      request.blocks.push_back(trace.unique_blocks++);
    }
    request.prompt_tokens = static_cast<uint32_t>(request.blocks.size() * trace.block_tokens);
    trace.requests.push_back(std::move(request));
  }
  const TraceFile file(trace);
  const SimResult ours = RunOnce(
      file.source(), {.workers = 16, .cache_blocks = 58'000, .policy = "penstock", .rho = 0.1});
  EXPECT_LT(ours.busy_over_mean, 1.15);
  EXPECT_GT(ours.slo, 0.99);
}

TEST_F(PolicyTest, EveryPolicyRunsToTheEnd) {
  for (const std::string& policy : SimPolicyNames()) {
    const SimResult result = RunOnce({.synthetic = {.requests = 300}},
                                     {.workers = 4, .cache_blocks = 3000, .policy = policy});
    EXPECT_EQ(result.ttft_s.size(), 300u) << policy;
    EXPECT_GT(result.block_hit, 0) << policy;
  }
}

}  // namespace
}  // namespace penstock
