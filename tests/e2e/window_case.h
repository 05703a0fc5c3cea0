#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "lab/fake/temp_folder.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/local_generator.h"
#include "tests/e2e/requests.h"
#include "tests/e2e/window_model.h"

namespace penstock {

// Compares the answers of clusters with those of one process that keeps all KV.
class WindowCase : public ::testing::Test {
 protected:
  void Make(int32_t window, WindowedLayersOf layers = WindowedLayersOf::kAll) {
    WriteWindowModel(folder_.path(), window, layers);
    local_ = std::make_unique<LocalGenerator>(ModelHost::Options{
        .model = folder_.path(), .kv_memory = "256MiB", .threads = 1, .step_tokens = 8192});
  }

  // Prompts without an end of their own, so that answers have the length that a test needs.
  TestRequest Prompt(int tokens, int answer, uint32_t seed) {
    TestRequest request = MakeRequest(tokens, local_->vocab(), seed, answer);
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
    for (uint32_t choice = 0; choice < answer.tokens.size(); ++choice) {
      EXPECT_EQ(answer.tokens[choice],
                local_->Generate(request.prompt, request.sampling, request.tokens_max, choice))
          << "choice " << choice << " of " << request.prompt.size() << " prompt tokens";
    }
  }

  TestAnswer Check(Cluster& cluster, const TestRequest& request) {
    TestAnswer answer = AskOne(cluster, request);
    Expect(cluster, request, answer);
    return answer;
  }

  void CheckAtOnce(Cluster& cluster, const std::vector<TestRequest>& requests, int clients) {
    std::vector<TestAnswer> answers(requests.size());
    std::atomic<size_t> next{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < clients; ++i) {
      threads.emplace_back([&] {
        for (size_t r = next++; r < requests.size(); r = next++) {
          answers[r] = AskOne(cluster, requests[r]);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t r = 0; r < requests.size(); ++r) Expect(cluster, requests[r], answers[r]);
    EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(5))) << cluster.Logs();
  }

  TempFolder folder_;
  std::unique_ptr<LocalGenerator> local_;
};

}  // namespace penstock
