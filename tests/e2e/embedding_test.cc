// Embeddings of real processes: bit for bit those of one process, however prompts are cut, cached
// and mixed with answers.

#include <gtest/gtest.h>

#include <thread>

#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/cluster/script.h"
#include "tests/e2e/embedding_requests.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

TEST(Embeddings, AreThoseOfOneProcess) {
  const EmbeddingModel model;
  LocalGenerator local(model.path());
  Cluster cluster(
      {.model = model.path(), .prefill = 2, .decode = 1, .prefill_flags = {"--random_chunks"}});
  const std::vector<TestRequest> requests = MakeRequests(24, 300, local.vocab(), /*seed=*/5);
  std::vector<v1::GenerateUnaryResponse> first(requests.size()), again(requests.size());
  const auto embed = [&](size_t i, v1::GenerateUnaryResponse& answer) {
    Deadline context(std::chrono::seconds(120));
    const grpc::Status status =
        cluster.client().GenerateUnary(&context, EmbeddingOf(requests[i].prompt), &answer);
    EXPECT_TRUE(status.ok()) << status.error_message() << cluster.Logs();
  };
  std::vector<std::jthread> clients;
  for (size_t i = 0; i < requests.size(); ++i) {
    clients.emplace_back([&, i] {
      if (i % 3 == 0) {  // answers beside them
        Deadline context(std::chrono::seconds(120));
        EXPECT_TRUE(Ask(cluster.client(), ToProto(requests[i]), context).status.ok());
      }
      embed(i, first[i]);
      embed(i, again[i]);  // with a cached prefix
    });
  }
  clients.clear();
  uint32_t cached = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<float> hidden = local.HiddenState(requests[i].prompt);
    const std::vector<float> expected = NormalisedEmbedding(hidden);
    for (const v1::GenerateUnaryResponse& answer : {first[i], again[i]}) {
      ASSERT_EQ(answer.choices_size(), 1);
      const auto& embedding = answer.choices(0).embedding();
      EXPECT_EQ(std::vector<float>(embedding.begin(), embedding.end()), expected) << i;
      EXPECT_EQ(answer.usage().prompt_tokens(), requests[i].prompt.size());
      EXPECT_EQ(answer.usage().completion_tokens(), 0u);
    }
    cached += again[i].usage().cached_tokens();
  }
  EXPECT_GT(cached, 0u);  // The other prefill worker may compute one again.
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(20)));
}

// Every prompt is computed whole, whatever is cached of it and wherever it is cut.
TEST(Embeddings, AMeanHasAllTokens) {
  const EmbeddingModel model("mean_tokens");
  LocalGenerator local(model.path());
  Cluster cluster(
      {.model = model.path(), .prefill = 2, .decode = 1, .prefill_flags = {"--random_chunks"}});
  for (const TestRequest& request : MakeRequests(8, 300, local.vocab(), /*seed=*/6)) {
    Deadline asked(std::chrono::seconds(120));
    EXPECT_TRUE(Ask(cluster.client(), ToProto(request), asked).status.ok());  // caches its prefix
    const std::vector<float> hidden = local.MeanHiddenState(request.prompt);
    const std::vector<float> expected = NormalisedEmbedding(hidden);
    for (int i = 0; i < 2; ++i) {
      Deadline context(std::chrono::seconds(120));
      v1::GenerateUnaryResponse answer;
      const grpc::Status status =
          cluster.client().GenerateUnary(&context, EmbeddingOf(request.prompt), &answer);
      ASSERT_TRUE(status.ok()) << status.error_message() << cluster.Logs();
      const auto& embedding = answer.choices(0).embedding();
      EXPECT_EQ(std::vector<float>(embedding.begin(), embedding.end()), expected);
      EXPECT_EQ(answer.usage().cached_tokens(), 0u);
    }
  }
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(20)));
}

TEST(Embeddings, OpenAisClientGetsThem) {
  const std::string scripts = SourceFolder() + "/tests/e2e/python";
  const std::string venv = BinaryFolder() + "/../openai-venv";
  const auto [made, ready] = RunScript(scripts + "/venv " + venv);
  if (!ready) GTEST_SKIP() << "the clients cannot be installed here: " << made;
  const EmbeddingModel model;
  Cluster cluster({.model = model.path(), .prefill = 1, .decode = 1});
  const auto [said, good] = RunScript(venv + "/bin/python " + scripts + "/embeddings_client.py " +
                                      cluster.http_endpoint());
  EXPECT_TRUE(good) << said << cluster.Logs();
  EXPECT_TRUE(AllHold(said)) << said;
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(20)));
}

TEST(Embeddings, ModelsThatGiveNoneSaySo) {
  Cluster cluster({.prefill = 1, .decode = 1});
  Deadline context(std::chrono::seconds(60));
  v1::GenerateUnaryResponse answer;
  const grpc::Status status =
      cluster.client().GenerateUnary(&context, EmbeddingOf({1, 2, 3}), &answer);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("has no modules.json"), std::string::npos)
      << status.error_message();
}

}  // namespace
}  // namespace penstock
