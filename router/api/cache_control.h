#pragma once

#include <string>

#include "base/status.h"
#include "proto/inference.pb.h"
#include "router/request/json.h"

namespace penstock {

// Lifetimes of the two kinds of breakpoints that Anthropic's API has, and OpenAI's takes as well.
inline constexpr int64_t kShortTtlSeconds = 300;  // "5m"
inline constexpr int64_t kLongTtlSeconds = 3600;  // "1h"

// Reads cache_control as in Anthropic's API: {"type": "ephemeral", "ttl": "5m"}. `path` names the
// field in errors.
absl::Status ReadCacheControl(const std::string& path, const Json& control,
                              v1::CacheBreakpoint& breakpoint);

}  // namespace penstock
