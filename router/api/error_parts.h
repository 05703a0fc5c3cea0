#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "http/http_message.h"

namespace penstock {

// The HTTP APIs' name of a field of GenerateRequest, e.g. "top_p" for "sampling.top_p".
std::string HttpNameOf(const std::string& field);

// The message that a client gets: the status's, with the HTTP name of the field at its beginning.
// Clients learn nothing of an `internal` error: the log has it.
std::string ErrorMessage(const absl::Status& status, bool internal);

// `status` with `field` in the place of GenerateRequest's name `name`, where it is about that
// field. Empty: unchanged.
absl::Status RenameField(absl::Status status, const std::string& name, const std::string& field);

inline constexpr Duration kDefaultRetry = std::chrono::seconds(1);

// Adds the headers by which OpenAI's and Anthropic's clients decide whether, and when, they retry.
void AddRetryHeaders(bool retry, Duration after, HttpResponse& response);

}  // namespace penstock
