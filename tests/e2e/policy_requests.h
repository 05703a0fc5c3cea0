#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/requests.h"

namespace penstock {

// The request under a KV policy, whose spans it marks; the answer has its timing.
v1::GenerateRequest ToProto(const TestRequest& request, const std::string& policy);

// Asks for an answer, which may take two minutes. `on_tokens` as of Ask.
TestAnswer AskFor(Cluster& cluster, const TestRequest& request, const std::string& policy,
                  const std::function<void(const TestAnswer&)>& on_tokens = nullptr);

// Asks for all requests, eight at a time, each under the next policy in turn. The answers have the
// order of the requests.
std::vector<TestAnswer> AskForAll(Cluster& cluster, std::span<const TestRequest> requests,
                                  std::span<const std::string> policies);

}  // namespace penstock
