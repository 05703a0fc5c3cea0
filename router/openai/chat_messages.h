#pragma once

#include "proto/inference.pb.h"
#include "router/request/json.h"

namespace penstock {

// Reads `messages` and add_generation_prompt. INVALID_ARGUMENT names the field and its allowed
// values. Pure.
absl::Status ReadMessages(const Json& body, v1::ChatPrompt& chat);

}  // namespace penstock
