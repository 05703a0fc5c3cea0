#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/inference.pb.h"
#include "tests/world/plan.h"

namespace penstock::world {

// One choice of an undisturbed answer.
struct ExpectedChoice {
  std::vector<uint32_t> tokens;
  // Tokens that a worker may compute after a stop string, until the router's cancellation arrives.
  // Nobody sees them, but their KV is cached.
  std::vector<uint32_t> hidden_tokens;
  std::vector<float> logprobs;
  std::string text;
  v1::FinishReason finish = v1::FINISH_REASON_UNSPECIFIED;
};

// The answer that a model gives when nothing is in its way, computed from the tokens alone: without
// pages, batches, workers or sessions.
std::vector<ExpectedChoice> Expect(const RequestPlan& request, uint64_t model);

}  // namespace penstock::world
