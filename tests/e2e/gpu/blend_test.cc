// Prompts on emulated GPUs whose documents are re-used: the same answer whatever is cached, and
// with all tokens computed that of one process on the same kind of GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "lab/fake/temp_folder.h"
#include "tests/e2e/blended_documents.h"
#include "tests/e2e/cluster/disturbance.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr DocumentSizes kSizes{.first = 44, .step = 16};

std::vector<std::string> OnGpu(const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = {"--device=cuda:0", "--gpu_memory_utilization=0.036",
                                    "--kv_blend_deviation=10"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

std::vector<uint32_t> Exact(const Documents& documents) {
  LocalGenerator local({.model = ModelFolder(),
                        .step_tokens = 256,
                        .device = "cuda:0",
                        .gpu_memory_utilization = 0.036});
  const TestRequest& request = documents.request;
  return local.Generate(request.prompt, request.sampling, request.tokens_max);
}

TEST(GpuBlendTest, DocumentsAreComputedOnceAndUsedInAnyOrder) {
  Cluster cluster({.prefill_flags = OnGpu({"--random_chunks"}),
                   .decode_flags = OnGpu(),
                   .worker_suffix = "-emulated"});
  AskBlended(cluster, InOrder({0, 1, 2}, 4, kSizes), "blend:15");
  const Documents other = InOrder({2, 0, 1}, 40, kSizes);
  const TestAnswer warm = AskBlended(cluster, other, "blend:15");
  const v1::BlendUsage& blend = warm.usage.blend();
  EXPECT_EQ(blend.filled_tokens(), 0u) << "all documents were known";
  EXPECT_EQ(blend.reused_tokens(), kSizes.Held(0) + kSizes.Held(1));
  EXPECT_EQ(blend.recomputed_tokens(),
            (kSizes.Held(0) * 15 + 99) / 100 + (kSizes.Held(1) * 15 + 99) / 100);
  EXPECT_GT(blend.deviation(), 0);
  const std::vector<uint32_t> exact = Exact(other);
  EXPECT_NE(warm.tokens[0], exact) << "a prompt that tells a blend is needed";
  EXPECT_EQ(AskBlended(cluster, other, "blend:100").tokens[0], exact);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();

  // Nothing cached, and other chunks.
  Cluster cold({.prefill_flags = OnGpu(), .decode_flags = OnGpu(), .worker_suffix = "-emulated"});
  const TestAnswer again = AskBlended(cold, other, "blend:15");
  EXPECT_EQ(again.tokens, warm.tokens);
  EXPECT_FLOAT_EQ(again.usage.blend().deviation(), blend.deviation());
  EXPECT_GT(again.usage.blend().filled_tokens(), 0u);
}

// The decode worker dies, or hands its sequence over, in the middle of the answer.
class GpuBlendFailoverTest : public testing::TestWithParam<int> {};
TEST_P(GpuBlendFailoverTest, TheAnswerIsTheUndisturbedOne) {
  Cluster cluster({.prefill = 1,
                   .decode = 2,
                   .prefill_flags = OnGpu(),
                   .decode_flags = OnGpu(),
                   .worker_suffix = "-emulated"});
  const Documents documents = InOrder({1, 0}, 80, kSizes);
  const TestAnswer calm = AskBlended(cluster, documents, "blend:15");
  const TestAnswer answer = AskDisturbed(
      cluster, {.signal = GetParam(), .tokens = 25},
      [&](const auto& on_tokens) { return AskBlended(cluster, documents, "blend:15", on_tokens); });
  EXPECT_EQ(answer.tokens, calm.tokens);
}
INSTANTIATE_TEST_SUITE_P(Signals, GpuBlendFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

TEST(GpuBlendTest, OtherPagesAreRefusedByName) {
  const TempFolder folder;
  std::vector<std::string> command = {"penstock-prefill-emulated", "--model=" + ModelFolder(),
                                      "--listen=127.0.0.1:0", "--kv_format=i8"};
  for (const std::string& flag : OnGpu()) command.push_back(flag);
  Process worker(command, folder.path() + "/log");
  EXPECT_NE(worker.Wait(seconds(60)).value_or(0), 0);
  EXPECT_THAT(worker.Log(), HasSubstr("on GPUs also kv_format=bf16, tensor_parallel=1"));
}

}  // namespace
}  // namespace penstock
