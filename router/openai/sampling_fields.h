#pragma once

#include "router/openai/request.h"

namespace penstock {

// Reads the fields that chat and text completions share into `request` and `generate`. The reader
// keeps the first error.
void ReadSharedFields(FieldReader& reader, OpenAiRequest& request, v1::GenerateRequest& generate);

// Reads cache_control as in Anthropic's API: {"type": "ephemeral", "ttl": "5m"}. `path` names the
// field in errors.
absl::Status ReadCacheControl(const std::string& path, const Json& control,
                              v1::CacheBreakpoint& breakpoint);

}  // namespace penstock
