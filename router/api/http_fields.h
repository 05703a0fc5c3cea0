#pragma once

#include <string>

#include "base/status.h"
#include "http/http_message.h"
#include "router/request/json.h"

namespace penstock {

// True if the head says that the body is JSON, whatever its character set.
bool IsJsonBody(const HttpHead& head);

// The client's id for the request, from the header x-request-id, or a new one. It is only shown and
// logged. INVALID_ARGUMENT for one that is too long or not printable.
absl::StatusOr<std::string> RequestIdOf(const HttpHead& head);

// INVALID_ARGUMENT unless a request's body is a JSON object.
absl::Status NeedObject(const Json& body);

}  // namespace penstock
