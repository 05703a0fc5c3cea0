#pragma once

#include "router/openai/request.h"

namespace penstock {

// Reads the fields that chat and text completions share into `request` and `generate`. The reader
// keeps the first error.
void ReadSharedFields(FieldReader& reader, OpenAiRequest& request, v1::GenerateRequest& generate);

}  // namespace penstock
