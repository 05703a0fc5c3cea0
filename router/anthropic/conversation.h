#pragma once

#include <string_view>

#include "proto/inference.pb.h"
#include "router/anthropic/breakpoints.h"
#include "router/request/json.h"

namespace penstock {

// Reads `system` and `messages` of a body. Results of tools become messages of the role "tool",
// calls and thinking parts of the assistant's messages. `text` is the text of `body`, which has the
// order of the calls' arguments. INVALID_ARGUMENT names the field and its allowed values. Pure.
absl::Status ReadConversation(const Json& body, std::string_view text, Breakpoints& breakpoints,
                              v1::ChatPrompt& chat);

}  // namespace penstock
