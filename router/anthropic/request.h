#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "proto/inference.pb.h"
#include "router/request/json.h"

namespace penstock {

// A parsed request of the Messages API.
struct MessageRequest {
  v1::GenerateRequest generate;
  bool stream = false;
  bool has_breakpoints = false;
  // Of all breakpoints, in seconds; nullopt: there are none, or they have two lifetimes.
  std::optional<int64_t> ttl_s;
};

inline constexpr char kMessageSchemaField[] = "output_config.format.schema";

// Parse the bodies of POST /v1/messages and /v1/messages/count_tokens. INVALID_ARGUMENT names the
// field and its allowed values; `text` is the text of `body`. Fields without an effect on the
// answer are ignored; all other unknown fields are refused, as Anthropic's server does. Pure.
// Source: https://docs.anthropic.com/en/api/messages
absl::StatusOr<MessageRequest> ParseMessageRequest(const Json& body, std::string_view text);
absl::StatusOr<v1::TokenizeRequest> ParseCountRequest(const Json& body, std::string_view text);

}  // namespace penstock
