// Embeddings of workers on emulated GPUs: bit for bit those of one process on the same kind of GPU.

#include <gtest/gtest.h>

#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/embedding_requests.h"

namespace penstock {
namespace {

class GpuEmbeddingTest : public testing::TestWithParam<std::tuple<const char*, int>> {};

// Of the last token, and the mean of all; on one GPU and on two; alone and beside answers, with and
// without a cached prefix.
TEST_P(GpuEmbeddingTest, AreThoseOfOneProcess) {
  const std::string pooling = std::get<0>(GetParam());
  const int gpus = std::get<1>(GetParam());
  const ScopedEnvironment count("PENSTOCK_EMULATED_GPUS", std::to_string(gpus));
  const EmbeddingModel model(pooling);
  LocalGenerator local({.model = model.path(),
                        .step_tokens = 120,
                        .device = "cuda:0",
                        .gpu_memory_utilization = 0.036,
                        .tensor_parallel = gpus,
                        .nccl_library = FAKE_NCCL});
  const std::string nccl = std::string("--nccl_library=") + FAKE_NCCL;
  const std::vector<std::string> flags = {"--device=cuda:0", "--gpu_memory_utilization=0.036", nccl,
                                          "--tensor_parallel=" + std::to_string(gpus),
                                          "--random_chunks"};
  Cluster cluster({.model = model.path(),
                   .prefill_flags = flags,
                   .decode_flags = {flags.begin(), flags.end() - 1},
                   .worker_suffix = "-emulated"});
  for (const TestRequest& request : MakeRequests(2, 80, local.vocab(), /*seed=*/5)) {
    const std::vector<float> expected =
        NormalisedEmbedding(pooling == "lasttoken" ? local.HiddenState(request.prompt)
                                                   : local.MeanHiddenState(request.prompt));
    Deadline asked(std::chrono::seconds(120));
    EXPECT_TRUE(Ask(cluster.client(), ToProto(request), asked).status.ok()) << cluster.Logs();
    Deadline context(std::chrono::seconds(120));
    v1::GenerateUnaryResponse answer;
    const grpc::Status status =
        cluster.client().GenerateUnary(&context, EmbeddingOf(request.prompt), &answer);
    ASSERT_TRUE(status.ok()) << status.error_message() << cluster.Logs();
    const auto& embedding = answer.choices(0).embedding();
    EXPECT_EQ(std::vector<float>(embedding.begin(), embedding.end()), expected);
  }
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(20))) << cluster.Logs();
}

INSTANTIATE_TEST_SUITE_P(Poolings, GpuEmbeddingTest,
                         testing::Values(std::tuple("lasttoken", 1), std::tuple("mean_tokens", 1),
                                         std::tuple("mean_tokens", 2)));

}  // namespace
}  // namespace penstock
