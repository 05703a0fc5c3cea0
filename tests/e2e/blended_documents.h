#pragma once

// Prompts of leading tokens, documents and a question, whose documents are re-used.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/policy_requests.h"

namespace penstock {

inline constexpr uint32_t kLeading = 21;

// Document `i` has first + step * i tokens.
struct DocumentSizes {
  int first = 150, step = 40;

  int TokensOf(uint32_t i) const { return first + step * static_cast<int>(i); }
  // Tokens of a document in full blocks behind the leading tokens.
  uint32_t Held(uint32_t i) const {
    return (kLeading + static_cast<uint32_t>(TokensOf(i))) / 16 * 16 - kLeading;
  }
};

struct Documents {
  TestRequest request;
  std::vector<uint32_t> parts;
};

inline Documents InOrder(const std::vector<uint32_t>& order, int answer = 40,
                         const DocumentSizes& sizes = {}) {
  const auto tokens = [](int count, uint32_t seed) {
    return MakeRequest(count, 256, seed, 1).prompt;
  };
  Documents documents{.request = MakeRequest(static_cast<int>(kLeading), 256, 690, answer),
                      .parts = {kLeading}};
  std::vector<uint32_t>& prompt = documents.request.prompt;
  for (const uint32_t i : order) {
    const std::vector<uint32_t> document = tokens(sizes.TokensOf(i), 700 + i);
    prompt.insert(prompt.end(), document.begin(), document.end());
    documents.parts.push_back(static_cast<uint32_t>(prompt.size()));
  }
  const std::vector<uint32_t> question = tokens(12, 691);
  prompt.insert(prompt.end(), question.begin(), question.end());
  documents.request.sampling.stop_token_ids.clear();
  return documents;
}

inline TestAnswer AskBlended(Cluster& cluster, const Documents& documents,
                             const std::string& policy,
                             const std::function<void(const TestAnswer&)>& on_tokens = nullptr) {
  v1::GenerateRequest proto = ToProto(documents.request, policy);
  proto.mutable_blend_parts()->Assign(documents.parts.begin(), documents.parts.end());
  Deadline context(std::chrono::minutes(2));
  TestAnswer answer = Ask(cluster.client(), proto, context, on_tokens);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
  return answer;
}

}  // namespace penstock
