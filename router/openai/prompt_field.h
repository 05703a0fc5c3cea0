#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "proto/inference.pb.h"
#include "router/request/json.h"

namespace penstock {

inline constexpr size_t kMaxPromptTokens =
    262'144;  // a first bound; FitToContext checks the model's limit

struct PromptFieldArgs {
  const char* name;                   // of the field
  size_t max_prompts = 1;             // if it is a list of prompts
  const v1::GenerateRequest& shared;  // has the fields that all prompts share
};

// Reads a field that is a text, token ids, or a list of either, as one request for each prompt.
// INVALID_ARGUMENT names the field. Pure.
absl::StatusOr<std::vector<v1::GenerateRequest>> ReadPromptField(const Json& body,
                                                                 const PromptFieldArgs& args);

}  // namespace penstock
