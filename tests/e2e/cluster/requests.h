#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/sampler/sampler.h"
#include "proto/inference.grpc.pb.h"

namespace penstock {

// One request of a test, and what it is compared with.
struct TestRequest {
  std::vector<uint32_t> prompt;
  SamplingParams sampling;
  int tokens_max = 16;
  int choices = 1;
  int beams = 0;  // of a search for the best `choices` answers; 0: they are drawn
  v1::StructuredOutput structured = {};  // `sampling` has its constraint
};

// `count` prompts of 1 to `prompt_tokens_max` tokens, both ends included, alternately greedy and
// sampled. The same for the same seed.
std::vector<TestRequest> MakeRequests(int count, int prompt_tokens_max, uint32_t vocab,
                                      uint32_t seed);

// One whose prompt has exactly `tokens` tokens.
TestRequest MakeRequest(int tokens, uint32_t vocab, uint32_t seed, int tokens_max);

v1::GenerateRequest ToProto(const TestRequest& request);

// The context of a call that ends after `patience`.
struct Deadline : grpc::ClientContext {
  explicit Deadline(std::chrono::microseconds patience) {
    set_deadline(std::chrono::system_clock::now() + patience);
  }
};

struct TestAnswer {
  grpc::Status status;
  std::vector<std::vector<uint32_t>> tokens;  // of each choice
  std::vector<v1::FinishReason> finish;       // of each choice
  v1::Usage usage;
  v1::Timing timing;
  v1::Explanation explanation;
};

// Streams the request to its end. `on_tokens` sees what has come so far after every chunk.
TestAnswer Ask(v1::Inference::Stub& client, const v1::GenerateRequest& request,
               grpc::ClientContext& context,
               const std::function<void(const TestAnswer&)>& on_tokens = nullptr);

}  // namespace penstock
