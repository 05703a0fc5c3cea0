#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/inference.pb.h"
#include "router/request/json.h"

namespace penstock {

inline constexpr size_t kMaxPrompts = 16;  // prompts in one completion request

// A parsed request of the OpenAI API.
struct OpenAiRequest {
  bool chat = false;
  std::vector<v1::GenerateRequest> prompts;  // one for chat; 1 to kMaxPrompts for completions
  bool stream = false;
  bool include_usage = false;     // a last chunk has the usage
  bool continuous_usage = false;  // every chunk has the usage so far
  bool logprobs = false;
  bool prompt_logprobs = false;
  bool return_token_ids = false;
  std::string structured_field = {};  // the client's name of what is in `structured`; empty: none
};

// Parse a request. INVALID_ARGUMENT names the field and its allowed values. Unsupported fields that
// would change the answer are refused; other unknown fields are ignored. `text` is the text of
// `body`. Pure.
absl::StatusOr<OpenAiRequest> ParseChatRequest(const Json& body, std::string_view text);
absl::StatusOr<OpenAiRequest> ParseCompletionRequest(const Json& body, std::string_view text);
absl::StatusOr<v1::TokenizeRequest> ParseTokenizeRequest(const Json& body, std::string_view text);
absl::StatusOr<v1::DetokenizeRequest> ParseDetokenizeRequest(const Json& body);

}  // namespace penstock
