#pragma once

#include "base/status.h"
#include "http/http_message.h"

namespace penstock {

// An error as OpenAI's SDKs act on it: status, {"error": {message, type, param, code}}, and the
// headers that say whether and when to try again.
HttpResponse ErrorResponse(const absl::Status& status);
// The same for errors below the API: a path, a method, a broken request.
HttpResponse ErrorResponse(int http_status, const std::string& message);

// {"error": {...}}, for the middle of a stream.
std::string ErrorJson(const absl::Status& status);

// A field of GenerateRequest as the HTTP API names it: "sampling.top_p" is "top_p".
std::string HttpNameOf(const std::string& field);

}  // namespace penstock
