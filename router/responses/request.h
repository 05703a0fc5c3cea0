#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/inference.pb.h"
#include "router/api/error_parts.h"
#include "router/request/json.h"

namespace penstock {

// A parsed request of the Responses API.
struct ResponseRequest {
  v1::GenerateRequest generate;
  bool stream = false;
  std::vector<FieldName> names = {};         // the API's, for errors
  std::vector<FieldName> prompt_names = {};  // of messages and calls; as many as the input has
};

// Parses the body of POST /v1/responses. INVALID_ARGUMENT names the field and its allowed values.
// Fields that need stored state or tools of the server are refused; other unknown fields are
// ignored. `text` is the text of `body`. Pure.
// Source: https://platform.openai.com/docs/api-reference/responses/create
absl::StatusOr<ResponseRequest> ParseResponseRequest(const Json& body, std::string_view text);

}  // namespace penstock
