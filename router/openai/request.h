#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/inference.pb.h"
#include "router/request/json.h"

namespace penstock {

inline constexpr size_t kMaxPrompts = 16;  // of one completion request

// A request of the OpenAI API as what the router answers.
struct OpenAiRequest {
  bool chat = false;
  std::vector<v1::GenerateRequest> prompts;  // one, but for completions of several prompts
  bool stream = false;
  bool include_usage = false;     // a last chunk has it
  bool continuous_usage = false;  // every chunk has it so far
  bool logprobs = false;
  bool return_token_ids = false;
};

// INVALID_ARGUMENT names the field and what it may be. What would change the answer and is not
// supported is refused, what is harmless is ignored.
absl::StatusOr<OpenAiRequest> ParseChatRequest(const Json& body);
absl::StatusOr<OpenAiRequest> ParseCompletionRequest(const Json& body);
absl::StatusOr<v1::TokenizeRequest> ParseTokenizeRequest(const Json& body);
absl::StatusOr<v1::DetokenizeRequest> ParseDetokenizeRequest(const Json& body);

}  // namespace penstock
