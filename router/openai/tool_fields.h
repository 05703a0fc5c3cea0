#pragma once

#include <cstdint>
#include <string_view>

#include "proto/inference.pb.h"
#include "router/request/json.h"

namespace penstock {

// Each reads fields of a chat's or a response's body. INVALID_ARGUMENT names the field and its
// allowed values. Pure.

// How a body writes a function: as a tool, and in tool_choice.
enum class ToolForm : uint8_t {
  kNested,  // of chats: {"type": "function", "function": {"name", ...}}
  kFlat,    // of responses: {"type": "function", "name", ...}
};

// tools, tool_choice and parallel_tool_calls. `text` is the text of `body`, which has the order of
// the schemas' properties.
absl::Status ReadTools(const Json& body, std::string_view text, ToolForm form,
                       v1::ChatPrompt& chat);

// chat_template_kwargs and reasoning_effort.
absl::Status ReadTemplateFields(const Json& body, v1::ChatPrompt& chat);

// vLLM's include_reasoning and SGLang's separate_reasoning.
absl::StatusOr<v1::ReasoningUse> ReadReasoningUse(const Json& body);

}  // namespace penstock
