#include <gtest/gtest.h>

#include <list>
#include <map>
#include <random>

#include "lab/simulate/sim_cluster.h"

namespace penstock {
namespace {

SimResult RunOnce(const SimTrace& trace, const SimOptions& options) {
  auto result = Simulate(trace, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : SimResult{};
}

// Least recently used, written down the slow way.
TEST(SimCache, IsLeastRecentlyUsedLeafFirst) {
  const SimTrace trace = MakeTrace({.requests = 300});
  for (const size_t capacity : {10, 200, 5000}) {
    SimCache cache(capacity);
    std::list<uint32_t> plain;
    for (const SimRequest& request : trace.requests) {
      size_t matched = 0;
      for (const uint32_t block : request.blocks) {
        if (std::find(plain.begin(), plain.end(), block) == plain.end()) break;
        ++matched;
      }
      ASSERT_EQ(cache.Match(request.blocks), matched);
      std::vector<uint32_t> evicted;
      cache.Insert(request.blocks, evicted);
      for (size_t i = request.blocks.size(); i-- > 0;) {
        plain.remove(request.blocks[i]);
        plain.push_back(request.blocks[i]);
      }
      for (const uint32_t block : evicted) {
        ASSERT_EQ(plain.front(), block);
        plain.pop_front();
      }
      ASSERT_EQ(plain.size(), cache.size());
    }
  }
}

TEST(SimDecode, ClosedFormEqualsStepByStep) {
  const StepModel step{.base_ms = 16, .ms_per_sequence = 0.5, .ms_per_context_token = 1e-3};
  SimDecode decode(step, 1e9);
  std::mt19937_64 random(3);
  double by_steps_ms = 0;
  std::map<uint32_t, std::pair<double, double>> sequences;  // context, steps left
  for (uint32_t id = 0; id < 20; ++id) {
    sequences[id] = {100.0 + static_cast<double>(random() % 4000), 50.0 * (1 + id)};
    decode.Add(id, sequences[id].first, sequences[id].second, 0);
  }
  while (!sequences.empty()) {
    double context = 0;
    for (const auto& [id, sequence] : sequences) context += sequence.first;
    // A step in the middle of its growth, as the closed form integrates it.
    const double count = static_cast<double>(sequences.size());
    by_steps_ms += step.Ms(count, context + count / 2);
    uint32_t ended = ~0u;
    for (auto& [id, sequence] : sequences) {
      ++sequence.first;
      if (--sequence.second < 0.5) ended = id;
    }
    if (ended == ~0u) continue;
    sequences.erase(ended);
    const std::optional<double> end = decode.NextEnd();
    ASSERT_TRUE(end.has_value());
    EXPECT_NEAR(*end * 1000, by_steps_ms, by_steps_ms * 1e-6);
    EXPECT_EQ(decode.Finish(*end), ended);
  }
  EXPECT_FALSE(decode.NextEnd().has_value());
}

TEST(Simulate, OneWorkerIsOneCache) {
  const SimTrace trace = MakeTrace({.requests = 800});
  SimCache cache(2000);
  double hits = 0;
  double blocks = 0;
  for (const SimRequest& request : trace.requests) {
    hits += static_cast<double>(cache.Match(request.blocks));
    blocks += static_cast<double>(request.blocks.size());
    std::vector<uint32_t> evicted;
    cache.Insert(request.blocks, evicted);
  }
  // So little load that every prompt is done before the next one comes.
  const SimResult result =
      RunOnce(trace, {.workers = 1, .cache_blocks = 2000, .policy = "penstock", .rho = 0.001});
  EXPECT_NEAR(result.block_hit, hits / blocks, 1e-9);
  EXPECT_NEAR(result.busy_over_mean, 1, 1e-9);
}

// Pollaczek and Khinchine: what a queue of one server, random arrivals and these service times must
// wait on average.
TEST(Simulate, OneWorkerWaitsAsQueueingTheoryHasIt) {
  std::mt19937_64 random(5);
  std::exponential_distribution<double> gap(1);
  SimTrace trace;
  double at = 0;
  double sum = 0;
  double squares = 0;
  const PrefillModel prefill{.base_ms = 30, .ms_per_token = 0.1, .ms_per_square = 0};
  constexpr int kRequests = 60'000;
  for (int i = 0; i < kRequests; ++i) {
    const auto tokens = static_cast<uint32_t>(500 + random() % 4000);
    const uint32_t block = trace.unique_blocks++;
    trace.requests.push_back({at += gap(random), tokens, 1, {block}});
    const double s = prefill.Ms(tokens, 0) / 1000;
    sum += s / kRequests;
    squares += s * s / kRequests;
  }
  const double rho = 0.7;
  const SimResult result =
      RunOnce(trace, {.workers = 1, .cache_blocks = 1, .rho = rho, .prefill = prefill});
  const double wait = rho / sum * squares / (2 * (1 - rho));
  EXPECT_NEAR((result.ttft_mean_s - sum) / wait, 1, 0.1);
}

TEST(Simulate, TheSameSeedGivesTheSameRun) {
  const SimTrace trace = MakeTrace({.requests = 500});
  const SimOptions options{.workers = 8, .decode_workers = 2, .cache_blocks = 4000, .seed = 3};
  const SimResult a = RunOnce(trace, options);
  const SimResult b = RunOnce(trace, options);
  EXPECT_EQ(a.ttft_s, b.ttft_s);
  EXPECT_EQ(a.tpot_p99_ms, b.tpot_p99_ms);
  EXPECT_GT(a.tpot_p50_ms, 0);
}

class PolicyTest : public ::testing::Test {
 protected:
  SimResult Of(const std::string& policy, bool shared = false) {
    return RunOnce(trace_, {.workers = 16,
                            .cache_blocks = 12'000,
                            .policy = policy,
                            .shared_stores = shared,
                            .rho = 1.1});
  }
  const SimTrace trace_ = MakeTrace({.requests = 3000});
};

TEST_F(PolicyTest, PlacementKeepsPrefixesTogetherAndWorkersBusyAlike) {
  const SimResult ours = Of("penstock");
  const SimResult queue_only = Of("shortest-queue");
  const SimResult ttft_min = Of("least-ttft");
  EXPECT_GT(ours.block_hit, 1.5 * queue_only.block_hit);
  EXPECT_GE(ours.block_hit, ttft_min.block_hit);
  EXPECT_GE(ours.slo, ttft_min.slo - 0.005);
  EXPECT_LT(ours.busy_over_mean, 1.15);
  EXPECT_LT(ours.ttft_error_p50, 0.1);
}

TEST_F(PolicyTest, ReadingEachOthersStoresIsAlmostOneCache) {
  const SimResult shared = Of("penstock", /*shared=*/true);
  EXPECT_GT(shared.block_hit, Of("pool").block_hit - 0.03);
  EXPECT_GT(shared.block_hit, Of("penstock").block_hit);
}

// Block 0 is in every prompt: whoever follows the longest match alone sends everything to one
// worker.
TEST_F(PolicyTest, OneSystemPromptForAllIsNoMagnet) {
  EXPECT_GT(Of("longest-match").busy_over_mean, 2);
  const SimTrace universal = MakeTrace({.requests = 3000, .universal_blocks = 8});
  const SimResult ours =
      RunOnce(universal, {.workers = 16, .cache_blocks = 12'000, .policy = "penstock"});
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
  const SimResult ours =
      RunOnce(trace, {.workers = 16, .cache_blocks = 58'000, .policy = "penstock", .rho = 0.1});
  EXPECT_LT(ours.busy_over_mean, 1.15);
  EXPECT_GT(ours.slo, 0.99);
}

TEST_F(PolicyTest, EveryPolicyRunsToTheEnd) {
  for (const std::string& policy : SimPolicyNames()) {
    const SimResult result = Of(policy);
    EXPECT_EQ(result.ttft_s.size(), trace_.requests.size()) << policy;
    EXPECT_GT(result.block_hit, 0) << policy;
  }
  EXPECT_FALSE(Simulate(trace_, {.policy = "best"}).ok());
}

}  // namespace
}  // namespace penstock
