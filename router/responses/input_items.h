#pragma once

#include <vector>

#include "proto/inference.pb.h"
#include "router/api/error_parts.h"
#include "router/request/json.h"

namespace penstock {

// Reads `instructions` and `input` of a body into messages. Instructions become a message of the
// role "system". Reasoning, a text and calls that follow each other are one message of the
// assistant, and a call's output is one of the role "tool". `names` gets the place of each message
// in the input, for errors. INVALID_ARGUMENT names the field and its allowed values. Pure.
// Source: https://platform.openai.com/docs/api-reference/responses/create
absl::Status ReadInput(const Json& body, v1::ChatPrompt& chat, std::vector<FieldName>& names);

}  // namespace penstock
