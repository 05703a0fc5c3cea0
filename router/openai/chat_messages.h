#pragma once

#include <span>
#include <string>
#include <string_view>

#include "proto/inference.pb.h"
#include "router/request/json.h"

namespace penstock {

inline constexpr size_t kMaxMessages = 4096;

// Appends `content`, a string or a list of parts, to `message`. A part is text if it has one of the
// types, or none; all others are refused. nullptr is an error. `path` names the content in errors.
absl::Status ReadContent(const std::string& path, const Json* content,
                         std::span<const std::string_view> types, v1::Message& message);

// Reads `messages` and add_generation_prompt. INVALID_ARGUMENT names the field and its allowed
// values. Pure.
absl::Status ReadMessages(const Json& body, v1::ChatPrompt& chat);

}  // namespace penstock
