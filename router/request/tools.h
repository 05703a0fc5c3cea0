#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model/output/output_grammar.h"
#include "proto/inference.pb.h"
#include "router/request/served_model.h"

namespace penstock {

inline constexpr int kMaxTools = 128;
inline constexpr char kToolsField[] = "chat.tools";
inline constexpr char kToolChoiceField[] = "chat.tool_choice";

// INVALID_ARGUMENT unless the model can call tools, and names, schemas' sizes and the choice are
// within their limits. OK without tools. Pure.
absl::Status CheckTools(const v1::ChatPrompt& chat, const ServedModel& model);

// The tools as templates have them: a list, or null without any. Needs CheckTools.
absl::StatusOr<ChatJson> ToolsJson(const v1::ChatPrompt& chat, const ServedModel& model);

// Sets the parts of `rules` that tools decide. INVALID_ARGUMENT names the tool whose schema is not
// supported where it must be enforced. Needs CheckTools. Pure; about a millisecond a tool.
absl::Status AddToolRules(const v1::ChatPrompt& chat, const ServedModel& model, OutputRules& rules);

}  // namespace penstock
