#pragma once

#include <string_view>

#include "proto/inference.pb.h"
#include "router/anthropic/breakpoints.h"
#include "router/request/json.h"

namespace penstock {

// Reads tools, tool_choice and thinking of a body. `text` is the text of `body`, which has the
// order of the schemas' properties. INVALID_ARGUMENT names the field and its allowed values. Pure.
absl::Status ReadMessageTools(const Json& body, std::string_view text, Breakpoints& breakpoints,
                              v1::ChatPrompt& chat);

}  // namespace penstock
