#pragma once

#include "base/status.h"
#include "http/http_message.h"

namespace penstock {

// An error in the form that OpenAI's SDKs act on: HTTP status, {"error": {message, type, param,
// code}}, and the headers for retries.
HttpResponse ErrorResponse(const absl::Status& status);
// The same for errors of HTTP itself: an unknown path, a wrong method, a malformed request.
HttpResponse ErrorResponse(int http_status, const std::string& message);

// {"error": {...}}, for an error within a stream.
std::string ErrorJson(const absl::Status& status);
// Its message alone.
std::string ErrorText(const absl::Status& status);

}  // namespace penstock
