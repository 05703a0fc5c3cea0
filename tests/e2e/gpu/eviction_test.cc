// Evictions on emulated GPUs: prompts whose KV is dropped at the end of prefill, and answers whose
// KV is dropped while they are decoded. The answers are what the same evictions give in one process
// on the same kind of GPU, whatever happens on the way.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "kvstore/names/kv_policy.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/disturbance.h"
#include "tests/e2e/cluster/kv_stats.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/policy_requests.h"
#include "tests/support/environment.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr int kLongest = 220;  // tokens of a prompt

std::vector<std::string> OnGpu(const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = {"--device=cuda:0", "--gpu_memory_utilization=0.036",
                                    "--kv_eviction=all"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

// Flags of a worker that has `gpus` GPUs.
std::vector<std::string> Degree(int gpus) {
  if (gpus == 1) return {};
  return {fmt::format("--tensor_parallel={}", gpus), "--nccl_library=" FAKE_NCCL};
}

ModelHost::Options OneProcess(const std::string& kv_format = "bf16", int gpus = 1) {
  ModelHost::Options options{.model = ModelFolder(),
                             .kv_format = kv_format,
                             .step_tokens = kLongest,
                             .device = "cuda:0",
                             .gpu_memory_utilization = 0.036,
                             .evicts = true};
  if (gpus > 1) {
    options.tensor_parallel = gpus;
    options.nccl_library = FAKE_NCCL;
  }
  return options;
}

// Sampled, so that what is lost shows.
TestRequest PromptOf(int tokens, uint32_t vocab, uint32_t seed, int tokens_max) {
  TestRequest request = MakeRequest(tokens, vocab, seed, tokens_max);
  request.sampling.stop_token_ids.clear();
  return request;
}

// What one process answers, with the eviction where it changes something.
std::vector<uint32_t> Expected(LocalGenerator& local, const TestRequest& request,
                               const std::string& policy, uint32_t choice = 0) {
  const auto prompt = static_cast<uint32_t>(request.prompt.size());
  const auto end = prompt + static_cast<uint32_t>(request.tokens_max);
  if (EvictedTokens(policy, prompt, end) == 0) {
    return local.Generate(request.prompt, request.sampling, request.tokens_max, choice);
  }
  return local.GenerateEvicted(request.prompt, request.sampling, request.tokens_max, policy,
                               choice);
}

// Every method, of prompts in chunks at random; one more token than the schedule needs to compact.
TEST(GpuEvictionTest, EveryMethodGivesWhatItGivesInOneProcess) {
  LocalGenerator local(OneProcess());
  Cluster cluster({.prefill_flags = OnGpu({"--random_chunks", "--chunk_tokens=128"}),
                   .decode_flags = OnGpu(),
                   .worker_suffix = "-emulated"});
  uint32_t seed = 300, differ = 0;
  for (const std::string& name : KvEvictionNames()) {
    ++seed;
    const uint32_t keep = 64 + seed % 7;
    const std::string policy = fmt::format("{}:{}+32", name, keep);
    const TestRequest request =
        PromptOf(100 + static_cast<int>(seed % 32), local.vocab(), seed, 38);
    const TestAnswer answer = AskFor(cluster, request, policy);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], Expected(local, request, policy)) << policy;
    EXPECT_EQ(answer.usage.evicted_tokens(), request.prompt.size() - keep);
    EXPECT_EQ(answer.usage.compactions(), 1u) << policy;
    differ += answer.tokens[0] != Expected(local, request, "") ? 1 : 0;
  }
  EXPECT_GT(differ, 3u) << "prompts that tell an eviction from none are needed";
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// A budget that holds everything changes no token.
TEST(GpuEvictionTest, ABudgetOfAllTokensChangesNothing) {
  LocalGenerator local(OneProcess());
  Cluster cluster({.prefill_flags = OnGpu({"--random_chunks"}),
                   .decode_flags = OnGpu(),
                   .worker_suffix = "-emulated"});
  const TestRequest request = PromptOf(100, local.vocab(), 320, 10);
  const auto exact = Expected(local, request, "");
  for (const char* policy : {"", "snapkv:4096", "h2o:100", "h2o:100+16", "tova:4096+100"}) {
    const TestAnswer answer = AskFor(cluster, request, policy);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], exact) << policy;
    EXPECT_EQ(answer.usage.evicted_tokens(), 0u);
  }
}

class GpuEvictionFormatTest : public testing::TestWithParam<const char*> {};
TEST_P(GpuEvictionFormatTest, QuantisedPagesAreEvictedToo) {
  LocalGenerator local(OneProcess(GetParam()));
  const std::string format = std::string("--kv_format=") + GetParam();
  Cluster cluster({.prefill_flags = OnGpu({"--random_chunks", format}),
                   .decode_flags = OnGpu({format}),
                   .worker_suffix = "-emulated"});
  for (const char* policy : {"snapkv:66+33", "keydiff:64+16", "h2o:66+17"}) {
    const TestRequest request = PromptOf(120, local.vocab(), 330, 40);
    const TestAnswer answer = AskFor(cluster, request, policy);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], Expected(local, request, policy)) << policy;
  }
}
INSTANTIATE_TEST_SUITE_P(Formats, GpuEvictionFormatTest, testing::Values("i8", "i4r", "k3v2"));

// Batched with others and with each other, with choices, and with guesses.
TEST(GpuEvictionTest, ManyAtOnceChangeNothing) {
  constexpr int kRequests = 10;
  LocalGenerator local(OneProcess());
  Cluster cluster({.prefill_flags = OnGpu({"--random_chunks"}),
                   .decode_flags = OnGpu({"--speculation=ngram", "--random_drafts"}),
                   .worker_suffix = "-emulated"});
  const std::vector<std::string> policies = {"snapkv:64+32", "",          "tova:64+16",
                                             "h2o:80",       "h2o:64+32", "keydiff:64+16"};
  std::vector<TestRequest> requests;
  for (int i = 0; i < kRequests; ++i) {
    requests.push_back(PromptOf(40 + 17 * i, local.vocab(), 340 + static_cast<uint32_t>(i), 45));
    requests.back().choices = i % 3 == 0 ? 2 : 1;
  }
  const std::vector<TestAnswer> answers = AskForAll(cluster, requests, policies);
  uint64_t compactions = 0;
  for (int i = 0; i < kRequests; ++i) {
    const std::string& policy = policies[i % policies.size()];
    ASSERT_TRUE(answers[i].status.ok()) << answers[i].status.error_message() << cluster.Logs();
    compactions += answers[i].usage.compactions();
    for (int choice = 0; choice < requests[i].choices; ++choice) {
      EXPECT_EQ(answers[i].tokens[choice],
                Expected(local, requests[i], policy, static_cast<uint32_t>(choice)))
          << "request " << i << " under " << policy;
    }
  }
  EXPECT_GT(compactions, 4u);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// The decode worker's pool, of what is left of the GPU's memory, has room for three of the
// sessions. So they are swapped out, with queries that wait for a compaction.
TEST(GpuEvictionTest, SwapsChangeNothing) {
  constexpr double kDeviceBytes = 8.0 * (1 << 30), kShare = 0.036;
  constexpr double kBlockBytes = 5 * 2 * 64 * 2 * 2 * 16;  // a multiple of 4,096
  const auto decode = [](double share) {
    return std::vector<std::string>{fmt::format("--gpu_memory_utilization={:.9f}", share),
                                    "--device=cuda:0", "--kv_eviction=all", "--dram_memory=16MiB",
                                    "--max_batch=6"};
  };
  const auto cluster_of = [&](double share) {
    return Cluster::Options{
        .prefill_flags = OnGpu(), .decode_flags = decode(share), .worker_suffix = "-emulated"};
  };
  double surplus = 0;
  {
    Cluster measured(cluster_of(kShare));
    const auto state = measured.decode().front().State();
    ASSERT_TRUE(state.has_value());
    surplus = static_cast<double>(state->kv_blocks_total()) - 21.5;  // 21 or 22 blocks
  }
  LocalGenerator local(OneProcess());
  Cluster cluster(cluster_of(kShare - surplus * kBlockBytes / kDeviceBytes));
  EXPECT_LE(cluster.decode().front().State()->kv_blocks_total(), 22u);
  const std::vector<std::string> policies = {"tova:64+32", "snapkv:64+32", "h2o:64+32"};
  std::vector<TestRequest> requests;
  for (uint32_t i = 0; i < 6; ++i) requests.push_back(PromptOf(80, local.vocab(), 370 + i, 60));
  const auto swaps = [&] { return StatsOf(cluster.decode().front()).swaps_out(); };
  // How many answers meet depends on the machine's speed.
  const auto swapped = [&] {
    const std::vector<TestAnswer> answers = AskForAll(cluster, requests, policies);
    for (size_t i = 0; i < answers.size(); ++i) {
      const std::string& policy = policies[i % policies.size()];
      if (!answers[i].status.ok()) {
        ADD_FAILURE() << answers[i].status.error_message() << cluster.Logs();
        return true;
      }
      EXPECT_EQ(answers[i].tokens[0], Expected(local, requests[i], policy)) << i;
    }
    return swaps() > 0;
  };
  EXPECT_TRUE(WaitUntil(swapped, seconds(200)));
  EXPECT_GT(swaps(), 0u);
}

// Each GPU of a worker evicts in its own heads, prompts in chunks and answers.
TEST(GpuEvictionTest, SeveralGpusEvictAsInOneProcess) {
  const ScopedEnvironment gpus("PENSTOCK_EMULATED_GPUS", "2");
  LocalGenerator local(OneProcess("bf16", 2));
  std::vector<std::string> chunks = Degree(2);
  chunks.emplace_back("--random_chunks");
  Cluster cluster({.prefill_flags = OnGpu(chunks),
                   .decode_flags = OnGpu(Degree(2)),
                   .worker_suffix = "-emulated"});
  const TestRequest request = PromptOf(70, local.vocab(), 381, 20);
  const std::vector<uint32_t> exact = Expected(local, request, "");
  for (const char* policy : {"h2o:64+16", "tova:64+16"}) {
    const TestAnswer answer = AskFor(cluster, request, policy);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], Expected(local, request, policy)) << policy;
    EXPECT_NE(answer.tokens[0], exact) << policy;
    EXPECT_EQ(answer.usage.evicted_tokens(), 6u) << policy;
    EXPECT_EQ(answer.usage.compactions(), 1u) << policy;
  }
}

// The decode worker dies, and the answer so far is computed again through the same compactions; or
// it hands its sequences over as they are.
// A policy, a signal, and how many GPUs each worker has.
using Failover = std::tuple<const char*, int, int>;
class GpuEvictionFailoverTest : public testing::TestWithParam<Failover> {};
TEST_P(GpuEvictionFailoverTest, TheAnswerIsTheUndisturbedOne) {
  const char* const policy = std::get<0>(GetParam());
  const int signal = std::get<1>(GetParam()), gpus = std::get<2>(GetParam());
  const ScopedEnvironment emulated("PENSTOCK_EMULATED_GPUS", std::to_string(gpus));
  LocalGenerator local(OneProcess("bf16", gpus));
  std::vector<std::string> chunks = Degree(gpus);
  chunks.emplace_back("--random_chunks");
  Cluster cluster({.prefill = 1,
                   .decode = 2,
                   .prefill_flags = OnGpu(chunks),
                   .decode_flags = OnGpu(Degree(gpus)),
                   .worker_suffix = "-emulated"});
  const TestRequest request = PromptOf(100, local.vocab(), 360, 140);
  // With little slack compactions may pass a move by, again and again, until the answer ends.
  const Disturbance disturbance{.signal = signal, .tokens = 60, .may_pass = signal == SIGTERM};
  const TestAnswer answer = AskDisturbed(cluster, disturbance, [&](const auto& on_tokens) {
    return AskFor(cluster, request, policy, on_tokens);
  });
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
  EXPECT_EQ(answer.tokens[0], Expected(local, request, policy));
}
INSTANTIATE_TEST_SUITE_P(
    Signals, GpuEvictionFailoverTest,
    testing::Values(Failover{"snapkv:64+40", SIGKILL, 1}, Failover{"snapkv:64+40", SIGTERM, 1},
                    Failover{"h2o:64+40", SIGKILL, 1}, Failover{"h2o:64+40", SIGTERM, 1},
                    Failover{"h2o:64+40", SIGKILL, 2}, Failover{"h2o:64+40", SIGTERM, 2}));

}  // namespace
}  // namespace penstock
