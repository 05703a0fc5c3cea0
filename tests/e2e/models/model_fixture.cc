#include "tests/e2e/models/model_fixture.h"

#include <atomic>
#include <thread>

#include "tests/e2e/cluster/disturbance.h"

namespace penstock {

using std::chrono::seconds;

void ModelTest::Load(const std::string& weights, const std::string& kv_format) {
  LoadOn({.kv_memory = "256MiB",
          .kv_format = kv_format,
          .weights = weights,
          .threads = 1,
          .step_tokens = 8192});
}

void ModelTest::LoadOn(ModelHost::Options options) {
  options.model = folder();
  local_ = std::make_unique<LocalGenerator>(options);
}

TestRequest ModelTest::LongRequest(int prompt_tokens, int tokens_max, uint32_t seed) {
  TestRequest request = MakeRequest(prompt_tokens, local().vocab(), seed, tokens_max);
  request.sampling.stop_token_ids.clear();
  return request;
}

TestAnswer ModelTest::AskOne(Cluster& cluster, const TestRequest& request,
                             const std::function<void(const TestAnswer&)>& on_tokens) {
  Deadline context(std::chrono::minutes(4));
  return Ask(cluster.client(), ToProto(request), context, on_tokens);
}

void ModelTest::Expect(Cluster& cluster, const TestRequest& request, const TestAnswer& answer) {
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
  if (request.beams > 0) {
    EXPECT_EQ(answer.tokens, local().Search(request.prompt, request.sampling,
                                            {.width = request.beams,
                                             .answers = request.choices,
                                             .tokens_max = request.tokens_max}));
    return;
  }
  for (uint32_t choice = 0; choice < answer.tokens.size(); ++choice) {
    EXPECT_EQ(answer.tokens[choice],
              local().Generate(request.prompt, request.sampling, request.tokens_max, choice))
        << "choice " << choice << " of " << request.prompt.size() << " prompt tokens";
  }
}

void ModelTest::CheckAtOnce(Cluster& cluster, const std::vector<TestRequest>& requests) {
  constexpr int kClients = 12;
  std::vector<TestAnswer> answers(requests.size());
  std::atomic<size_t> next{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      for (size_t r = next++; r < requests.size(); r = next++) {
        answers[r] = AskOne(cluster, requests[r]);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (size_t r = 0; r < requests.size(); ++r) Expect(cluster, requests[r], answers[r]);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

TestAnswer ModelTest::CheckDisturbed(Cluster& cluster, TestRequest request, int signal,
                                     size_t tokens) {
  request.choices = 2;
  TestAnswer answer =
      AskDisturbed(cluster, {.signal = signal, .tokens = tokens},
                   [&](const auto& on_tokens) { return AskOne(cluster, request, on_tokens); });
  Expect(cluster, request, answer);
  return answer;
}

}  // namespace penstock
