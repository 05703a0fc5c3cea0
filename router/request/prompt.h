#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "proto/inference.pb.h"
#include "router/request/served_model.h"

namespace penstock {

// INVALID_ARGUMENT names the message and what is wrong with it, in the template's own words where
// it is the template that refuses; FAILED_PRECONDITION when the model has no template.
absl::StatusOr<std::string> RenderChat(const v1::ChatPrompt& chat, const ServedModel& model);

// The ids of a request's prompt, whichever form it has. INVALID_ARGUMENT for none, an empty one, a
// token outside the vocabulary, and text too long for `max_tokens` whatever its tokens are.
absl::StatusOr<std::vector<uint32_t>> PromptTokens(const v1::GenerateRequest& request,
                                                   const ServedModel& model, uint32_t max_tokens);

}  // namespace penstock
