#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// The parts of one event of an OpenAI stream that a load generator reads.
struct OpenAiEvent {
  bool done = false;  // "[DONE]"
  bool has_text = false;
  std::optional<uint32_t> tokens;  // that it holds, where it has token_ids
  std::string finish_reason;
  struct Usage {
    uint32_t prompt_tokens = 0;
    uint32_t cached_tokens = 0;
    uint32_t output_tokens = 0;
  };
  std::optional<Usage> usage;
  std::string error;  // its kind, where the event is an error
  std::string error_message;
};

// The data of an event of /v1/completions or /v1/chat/completions. DATA_LOSS: it is no such thing.
absl::StatusOr<OpenAiEvent> ParseOpenAiEvent(std::string_view data);

// {"error": {"code", "type", "message"}}: a short kind ("503 overloaded") and the message. Of
// bodies that are none of that, the status alone.
struct OpenAiError {
  std::string kind;
  std::string message;
};
OpenAiError ParseOpenAiError(int status, std::string_view body);

}  // namespace penstock
