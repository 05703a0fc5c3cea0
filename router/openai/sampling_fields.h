#pragma once

#include "router/openai/request.h"

namespace penstock {

// The fields that chat and text completions share, into `request` and `generate`. Errors stay in
// the reader.
void ReadSharedFields(FieldReader& reader, OpenAiRequest& request, v1::GenerateRequest& generate);

// Refuses what would change the answer if it were ignored.
void RefuseUnsupported(FieldReader& reader);

}  // namespace penstock
