#pragma once

#include "proto/inference.pb.h"
#include "router/openai/request.h"

namespace penstock {

// The reader keeps the first error in each.

// Reads the fields that all bodies share.
void ReadSharedFields(FieldReader& reader, v1::GenerateRequest& generate);

// Reads the further fields that chat and text completions share: the limit of tokens, options of
// streams, and return_token_ids.
void ReadCompletionOptions(FieldReader& reader, OpenAiRequest& request,
                           v1::GenerateRequest& generate);

}  // namespace penstock
