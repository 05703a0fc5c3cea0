// Answers on emulated GPUs whose tokens attend to pages that they select: they are what the same
// selection gives in one process on the same kind of GPU, whatever happens on the way.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/disturbance.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/policy_requests.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr int kLongest = 200;  // tokens of a prompt

std::vector<std::string> OnGpu(const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = {"--device=cuda:0", "--gpu_memory_utilization=0.036",
                                    "--kv_selection=all"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

ModelHost::Options OneProcess(const std::string& kv_format = "bf16") {
  return {.model = ModelFolder(),
          .kv_format = kv_format,
          .step_tokens = kLongest,
          .device = "cuda:0",
          .gpu_memory_utilization = 0.036,
          .selects = true};
}

// Sampled, so that what is not attended to shows.
TestRequest PromptOf(int tokens, uint32_t vocab, uint32_t seed, int tokens_max = 40) {
  TestRequest request = MakeRequest(tokens, vocab, seed, tokens_max);
  request.sampling.stop_token_ids.clear();
  return request;
}

std::vector<uint32_t> Expected(LocalGenerator& local, const TestRequest& request,
                               const std::string& policy, uint32_t choice = 0) {
  local.Select(policy);
  return local.Generate(request.prompt, request.sampling, request.tokens_max, choice);
}

TEST(GpuSelectionTest, AnswersSelectAsInOneProcess) {
  LocalGenerator local(OneProcess());
  Cluster cluster({.prefill_flags = OnGpu({"--random_chunks", "--chunk_tokens=128"}),
                   .decode_flags = OnGpu(),
                   .worker_suffix = "-emulated"});
  int differ = 0;
  for (const uint32_t tokens : {64u, 100u, 4096u}) {
    const std::string policy = fmt::format("quest:{}", tokens);
    const TestRequest request = PromptOf(150, local.vocab(), tokens);
    const TestAnswer answer = AskFor(cluster, request, policy);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], Expected(local, request, policy)) << policy;
    const auto exact = Expected(local, request, "");
    if (tokens == 4096) {
      EXPECT_EQ(answer.tokens[0], exact) << "all pages are within the budget";
    }
    differ += answer.tokens[0] != exact ? 1 : 0;
  }
  EXPECT_GT(differ, 0) << "prompts that tell a selection from none are needed";
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// Each GPU of a worker chooses for its own heads.
TEST(GpuSelectionTest, SeveralGpusSelectAsInOneProcess) {
  const ScopedEnvironment gpus("PENSTOCK_EMULATED_GPUS", "2");
  ModelHost::Options options = OneProcess();
  options.tensor_parallel = 2;
  options.nccl_library = FAKE_NCCL;
  LocalGenerator local(options);
  const std::vector<std::string> flags =
      OnGpu({"--tensor_parallel=2", "--nccl_library=" FAKE_NCCL});
  Cluster cluster({.prefill_flags = flags, .decode_flags = flags, .worker_suffix = "-emulated"});
  const TestRequest request = PromptOf(130, local.vocab(), 470);
  for (const char* policy : {"quest:64", "quest:4096"}) {
    const TestAnswer answer = AskFor(cluster, request, policy);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], Expected(local, request, policy)) << policy;
  }
  EXPECT_NE(Expected(local, request, "quest:64"), Expected(local, request, ""));
}

class GpuSelectionFormatTest : public testing::TestWithParam<const char*> {};
TEST_P(GpuSelectionFormatTest, QuantisedPagesAreSelectedToo) {
  LocalGenerator local(OneProcess(GetParam()));
  const std::string format = std::string("--kv_format=") + GetParam();
  Cluster cluster({.prefill_flags = OnGpu({format}),
                   .decode_flags = OnGpu({format}),
                   .worker_suffix = "-emulated"});
  const TestRequest request = PromptOf(150, local.vocab(), 430);
  const TestAnswer answer = AskFor(cluster, request, "quest:64");
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
  EXPECT_EQ(answer.tokens[0], Expected(local, request, "quest:64"));
}
INSTANTIATE_TEST_SUITE_P(Formats, GpuSelectionFormatTest, testing::Values("i4r"));

// Batched with each other, with choices, and with guesses.
TEST(GpuSelectionTest, ManyAtOnceChangeNothing) {
  constexpr int kRequests = 6;
  LocalGenerator local(OneProcess());
  Cluster cluster({.prefill_flags = OnGpu({"--random_chunks"}),
                   .decode_flags = OnGpu({"--speculation=ngram", "--random_drafts"}),
                   .worker_suffix = "-emulated"});
  const std::vector<std::string> policies = {"quest:64", "", "quest:100", "quest:80"};
  std::vector<TestRequest> requests;
  for (int i = 0; i < kRequests; ++i) {
    requests.push_back(PromptOf(60 + 20 * i, local.vocab(), 440 + static_cast<uint32_t>(i)));
    requests.back().choices = i % 3 == 0 ? 2 : 1;
  }
  const std::vector<TestAnswer> answers = AskForAll(cluster, requests, policies);
  for (int i = 0; i < kRequests; ++i) {
    const std::string& policy = policies[static_cast<size_t>(i) % policies.size()];
    ASSERT_TRUE(answers[i].status.ok()) << answers[i].status.error_message() << cluster.Logs();
    for (int choice = 0; choice < requests[i].choices; ++choice) {
      EXPECT_EQ(answers[i].tokens[choice],
                Expected(local, requests[i], policy, static_cast<uint32_t>(choice)))
          << "request " << i << " under " << policy;
    }
  }
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// The decode worker dies, and the answer so far is computed again as it was decoded; or it hands
// its sequences over.
class GpuSelectionFailoverTest : public testing::TestWithParam<int> {};
TEST_P(GpuSelectionFailoverTest, TheAnswerIsTheUndisturbedOne) {
  LocalGenerator local(OneProcess());
  Cluster cluster({.prefill = 1,
                   .decode = 2,
                   .prefill_flags = OnGpu({"--random_chunks"}),
                   .decode_flags = OnGpu(),
                   .worker_suffix = "-emulated"});
  const TestRequest request = PromptOf(120, local.vocab(), 460, 90);
  const TestAnswer answer = AskDisturbed(
      cluster, {.signal = GetParam(), .tokens = 25},
      [&](const auto& on_tokens) { return AskFor(cluster, request, "quest:72", on_tokens); });
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
  EXPECT_EQ(answer.tokens[0], Expected(local, request, "quest:72"));
}
INSTANTIATE_TEST_SUITE_P(Signals, GpuSelectionFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

// Bounds take memory from the pool.
TEST(GpuSelectionTest, BoundsAreCounted) {
  const auto blocks = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--device=cuda:0", "--gpu_memory_utilization=0.036"});
    Cluster cluster({.prefill_flags = flags, .decode_flags = flags, .worker_suffix = "-emulated"});
    return cluster.decode().front().State()->kv_blocks_total();
  };
  const auto without = static_cast<double>(blocks({}));
  const auto with = static_cast<double>(blocks({"--kv_selection=all"}));
  EXPECT_NEAR(with * (1 + 1.0 / 16), without, 2);
}

}  // namespace
}  // namespace penstock
