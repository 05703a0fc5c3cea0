#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "http/http_message.h"

namespace penstock {

// The HTTP APIs' name of a field of GenerateRequest, e.g. "top_p" for "sampling.top_p".
std::string HttpNameOf(const std::string& field);

// INVALID_ARGUMENT `unsupported_parameter`: "FIELD WHY".
absl::Status UnsupportedField(std::string_view field, std::string_view why);

// The message that a client gets: the status's, with the HTTP name of the field at its beginning.
// Clients learn nothing of an `internal` error: the log has it.
std::string ErrorMessage(const absl::Status& status, bool internal);

// The name that an API has for a field of GenerateRequest.
struct FieldName {
  std::string name;   // GenerateRequest's, e.g. "chat.messages[2]"; stands for its parts, too
  std::string shown;  // the API's, e.g. "input[3]"; empty: the same
};

// `status` with the API's name of the field that it is about. The longest name that fits is
// replaced.
absl::Status RenameFields(absl::Status status, const std::vector<FieldName>& names);

inline constexpr Duration kDefaultRetry = std::chrono::seconds(1);

// Adds the headers by which OpenAI's and Anthropic's clients decide whether, and when, they retry.
void AddRetryHeaders(bool retry, Duration after, HttpResponse& response);

}  // namespace penstock
