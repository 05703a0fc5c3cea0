#pragma once

#include "router/openai/request.h"

namespace penstock {

// The fields that chat and text completions share, into `request` and `generate`. Errors stay in
// the reader.
void ReadSharedFields(FieldReader& reader, OpenAiRequest& request, v1::GenerateRequest& generate);

// As Anthropic's API writes it: {"type": "ephemeral", "ttl": "5m"}. `path` names it in errors.
absl::Status ReadCacheControl(const std::string& path, const Json& control,
                              v1::CacheBreakpoint& breakpoint);

// Refuses what would change the answer if it were ignored.
void RefuseUnsupported(FieldReader& reader);

}  // namespace penstock
