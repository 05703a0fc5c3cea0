// Pages with a span and centred keys on emulated GPUs, and decode workers that die or leave. Every
// token is that of one process on the same kind of GPU.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/disturbance.h"
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
