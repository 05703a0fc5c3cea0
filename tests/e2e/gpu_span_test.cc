// Pages with a span and centred keys on emulated GPUs: a decode worker whose memory is too small
// for its sequences, and workers that die or leave. Every token is that of one process on the same
// kind of GPU, which keeps all of it.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <future>

#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/disturbance.h"
#include "tests/e2e/cluster/kv_stats.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

const std::string kFormat = "k3v3c+64";

std::vector<std::string> OnGpu(const std::vector<std::string>& more) {
  std::vector<std::string> flags = {"--device=cuda:0", "--kv_format=" + kFormat};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}
const std::string kMemory = "--gpu_memory_utilization=0.036";

class GpuSpanTest : public testing::Test {
 protected:
  // A greedy answer of exactly `tokens_max` tokens.
  TestRequest RequestOf(int prompt, uint32_t seed, int tokens_max) {
    TestRequest request = MakeRequest(prompt, local_.vocab(), seed, tokens_max);
    request.sampling.temperature = 0;
    request.sampling.stop_token_ids.clear();
    return request;
  }
  static TestAnswer AskOne(Cluster& cluster, const TestRequest& request,
                           const std::function<void(const TestAnswer&)>& on_tokens = nullptr) {
    Deadline context(std::chrono::minutes(4));
    return Ask(cluster.client(), ToProto(request), context, on_tokens);
  }
  void Expect(Cluster& cluster, const TestRequest& request, const TestAnswer& answer) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0],
              local_.Generate(request.prompt, request.sampling, request.tokens_max));
  }

 private:
  LocalGenerator local_{ModelHost::Options{.model = ModelFolder(),
                                           .kv_format = kFormat,
                                           .step_tokens = 300,
                                           .device = "cuda:0",
                                           .gpu_memory_utilization = 0.036}};
};

// Sequences grow beyond the pool together. Those that are swapped out keep the rows of their span.
TEST_F(GpuSpanTest, SequencesThatAreSwappedOutGoOn) {
  constexpr uint32_t kSequences = 8;
  Cluster cluster(
      {.prefill_flags = OnGpu({kMemory}),
       .decode_flags = OnGpu({"--gpu_memory_utilization=0.0327", "--dram_memory=64MiB"}),
       .worker_suffix = "-emulated"});
  const auto state = cluster.decode()[0].State();
  EXPECT_LT(state->kv_blocks_total(), kSequences * 12u);  // of 40 + 152 tokens
  std::vector<TestRequest> requests;
  std::vector<std::future<TestAnswer>> answers;
  for (uint32_t seed = 1; seed <= kSequences; ++seed) {
    requests.push_back(RequestOf(40, seed, 152));
    answers.push_back(std::async(std::launch::async, [&cluster, request = requests.back()] {
      return AskOne(cluster, request);
    }));
  }
  for (size_t i = 0; i < answers.size(); ++i) Expect(cluster, requests[i], answers[i].get());
  EXPECT_GT(StatsOf(cluster.decode()[0]).swaps_out(), 0u) << cluster.Logs();
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(10))) << cluster.Logs();
}

// The parameter is the signal that the decode worker gets in the middle of the answer: it dies, or
// it hands its sequence over.
class GpuSpanFailoverTest : public GpuSpanTest, public testing::WithParamInterface<int> {};

TEST_P(GpuSpanFailoverTest, TheAnswerIsTheUndisturbedOne) {
  Cluster cluster({.decode = 2,
                   .prefill_flags = OnGpu({kMemory, "--random_chunks", "--chunk_tokens=64"}),
                   .decode_flags = OnGpu({kMemory, "--wire_codec=raw"}),
                   .worker_suffix = "-emulated"});
  const TestRequest request = RequestOf(150, 61, 100);
  const TestAnswer answer =
      AskDisturbed(cluster, {.signal = GetParam(), .tokens = 50},
                   [&](const auto& on_tokens) { return AskOne(cluster, request, on_tokens); });
  Expect(cluster, request, answer);
  if (GetParam() == SIGTERM) {
    EXPECT_EQ(answer.usage.recomputed_tokens(), 0u) << cluster.Logs();
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, GpuSpanFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

}  // namespace
}  // namespace penstock
