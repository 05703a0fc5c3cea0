#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "proto/inference.pb.h"
#include "proto/worker.pb.h"

namespace penstock {

// What a client asked the answer to be, checked and complete: every default filled in.
struct AnswerSpec {
  // As the workers get it. max_tokens is 0 until FitToContext, where the client set none.
  v1::SamplingSpec sampling;
  std::vector<std::string> stop;
  bool include_stop_in_output = false;
  bool return_token_ids = false;
  bool return_logprobs = false;
  bool skip_special_tokens = true;
  bool timing = false;
  bool explain = false;
};

// What requests are checked against.
struct ModelLimits {
  std::string name;
  uint32_t vocab = 0;
  uint32_t max_model_len = 0;
  std::vector<uint32_t> eos_token_ids;
};

inline constexpr uint32_t kDefaultMaxTokens = 1024;
inline constexpr size_t kMaxClientRequestIdBytes = 128;

// NOT_FOUND unless `model` is empty or the served name.
absl::Status CheckModelName(const std::string& model, const ModelLimits& limits);

// Every field but the prompt. Errors name the field, its value and the limit. `random_seed` is
// taken where the client gives no seed. Pure.
absl::StatusOr<AnswerSpec> ValidateAnswer(const v1::GenerateRequest& request,
                                          const ModelLimits& limits, uint64_t random_seed);

// INVALID_ARGUMENT when `prompt_tokens` leaves no room for an answer; else settles max_tokens.
absl::Status FitToContext(size_t prompt_tokens, const ModelLimits& limits, AnswerSpec& answer);

}  // namespace penstock
