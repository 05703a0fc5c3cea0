#pragma once

#include <string>

#include "proto/inference.pb.h"

namespace penstock {

// Appends the tokens of a prompt as vLLM's API has them: a list with null for the first token, and
// for each other one an object from token ids to {"logprob", "rank", "decoded_token"}: the token
// itself, then the most likely ones. Pure.
void AppendPromptLogprobs(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& prompt,
                          std::string& out);

}  // namespace penstock
