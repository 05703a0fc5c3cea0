#include "tests/e2e/policy_requests.h"

#include <atomic>
#include <thread>

#include "kvstore/names/kv_policy.h"

namespace penstock {

v1::GenerateRequest ToProto(const TestRequest& request, const std::string& policy) {
  v1::GenerateRequest proto = ToProto(request);
  proto.set_kv_policy(policy.substr(0, policy.find('@')));
  const auto eviction = EvictionOf(policy);
  for (const TokenSpan& span : eviction ? eviction->spans : std::vector<TokenSpan>()) {
    proto.add_keep_spans(span.begin);
    proto.add_keep_spans(span.end);
  }
  proto.mutable_output()->set_timing(true);
  return proto;
}

TestAnswer AskFor(Cluster& cluster, const TestRequest& request, const std::string& policy,
                  const std::function<void(const TestAnswer&)>& on_tokens) {
  Deadline context(std::chrono::minutes(2));
  return Ask(cluster.client(), ToProto(request, policy), context, on_tokens);
}

std::vector<TestAnswer> AskForAll(Cluster& cluster, std::span<const TestRequest> requests,
                                  std::span<const std::string> policies) {
  constexpr int kClients = 8;
  std::vector<TestAnswer> answers(requests.size());
  std::atomic<size_t> next{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&] {
      for (size_t i = next++; i < requests.size(); i = next++) {
        answers[i] = AskFor(cluster, requests[i], policies[i % policies.size()]);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  return answers;
}

}  // namespace penstock
