#pragma once

#include <string>

#include "base/status.h"
#include "http/http_message.h"

namespace penstock {

// An error in the form that Anthropic's SDKs act on: HTTP status, {"type": "error", "error": {type,
// message}, "request_id"}, and the headers for retries.
// Source: https://docs.anthropic.com/en/api/errors
HttpResponse MessageErrorResponse(const absl::Status& status, const std::string& request_id);
// The same for errors of HTTP itself: a wrong method, a malformed request.
HttpResponse MessageErrorResponse(int http_status, const std::string& message,
                                  const std::string& request_id);

// The body alone, for an error within a stream.
std::string MessageErrorJson(const absl::Status& status, const std::string& request_id);

}  // namespace penstock
