#include "router/anthropic/error.h"

#include <fmt/format.h>

#include <string_view>

#include "router/api/error_parts.h"
#include "router/request/error_detail.h"
#include "router/request/json.h"

namespace penstock {
namespace {

struct MessageErrorKind {
  int status = 500;
  std::string_view type;
};

MessageErrorKind KindOfError(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return {400, "invalid_request_error"};
    case absl::StatusCode::kUnauthenticated:
      return {401, "authentication_error"};
    case absl::StatusCode::kPermissionDenied:
      return {403, "permission_error"};
    case absl::StatusCode::kNotFound:
      return {404, "not_found_error"};
    case absl::StatusCode::kDeadlineExceeded:
      return {504, "timeout_error"};
    case absl::StatusCode::kResourceExhausted:
      if (DetailOf(status).reason == kReasonQuota) return {429, "rate_limit_error"};
      return {529, "overloaded_error"};
    case absl::StatusCode::kUnavailable:
      return {529, "overloaded_error"};
    default:
      return {500, "api_error"};
  }
}

std::string_view TypeOfStatus(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 408:
    case 504:
      return "timeout_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "api_error";
  }
}

// The API's name of a field that OpenAI's API calls otherwise.
std::string InThisApi(std::string message) {
  const bool of_stop = message.starts_with("stop ") || message.starts_with("stop[");
  return of_stop ? "stop_sequences" + message.substr(4) : message;
}

std::string ErrorBody(std::string_view type, std::string_view message, std::string_view id) {
  std::string out = fmt::format(R"({{"type":"error","error":{{"type":"{}","message":)", type);
  AppendJsonString(message, out);
  out += R"(},"request_id":)";
  AppendJsonString(id, out);
  return out + "}";
}

HttpResponse Response(int status, bool retry, Duration after, const std::string& request_id) {
  HttpResponse response{.status = status, .headers = {{"content-type", "application/json"}}};
  if (!request_id.empty()) response.headers.push_back({"request-id", request_id});
  AddRetryHeaders(retry, after, response);
  return response;
}

}  // namespace

HttpResponse MessageErrorResponse(const absl::Status& status, const std::string& request_id) {
  const int code = KindOfError(status).status;
  const bool retry = code == 429 || code == 504 || code == 529;
  HttpResponse response =
      Response(code, retry, DetailOf(status).retry_after.value_or(kDefaultRetry), request_id);
  if (code == 401) response.headers.push_back({"www-authenticate", "Bearer"});
  response.body = MessageErrorJson(status, request_id);
  return response;
}

HttpResponse MessageErrorResponse(int http_status, const std::string& message,
                                  const std::string& request_id) {
  const bool retry = http_status == 408 || http_status == 429 || http_status == 503;
  HttpResponse response = Response(http_status, retry, kDefaultRetry, request_id);
  response.body = ErrorBody(TypeOfStatus(http_status), message, request_id);
  return response;
}

std::string MessageErrorJson(const absl::Status& status, const std::string& request_id) {
  const MessageErrorKind kind = KindOfError(status);
  return ErrorBody(kind.type, InThisApi(ErrorMessage(status, kind.status == 500)), request_id);
}

}  // namespace penstock
