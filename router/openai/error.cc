#include "router/openai/error.h"

#include <string_view>

#include "router/api/error_parts.h"
#include "router/request/error_detail.h"
#include "router/request/json.h"

namespace penstock {
namespace {

struct ErrorKind {
  int status = 500;
  std::string_view type;
  std::string_view code;
};

ErrorKind ErrorKindOf(absl::StatusCode code, std::string_view reason) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return {400, "invalid_request_error", "invalid_value"};
    case absl::StatusCode::kUnauthenticated:
      return {401, "authentication_error", "invalid_api_key"};
    case absl::StatusCode::kPermissionDenied:
      return {403, "permission_error", "permission_denied"};
    case absl::StatusCode::kNotFound:
      return {404, "not_found_error", kReasonModel};
    case absl::StatusCode::kDeadlineExceeded:
      return {408, "timeout_error", "timeout"};
    case absl::StatusCode::kResourceExhausted:
      if (reason == kReasonQuota) return {429, "rate_limit_error", kReasonQuota};
      return {503, "unavailable_error", kReasonOverloaded};
    case absl::StatusCode::kUnavailable:
      return {503, "unavailable_error", kReasonNoWorker};
    default:
      return {500, "internal_error", "internal_error"};
  }
}

ErrorKind ErrorKindOf(int http_status) {
  switch (http_status) {
    case 401:
      return {401, "authentication_error", "invalid_api_key"};
    case 404:
      return {404, "not_found_error", "unknown_url"};
    case 405:
      return {405, "invalid_request_error", "method_not_allowed"};
    case 408:
      return {408, "timeout_error", "timeout"};
    case 413:
      return {413, "request_too_large", "request_too_large"};
    case 503:
      return {503, "unavailable_error", kReasonOverloaded};
    default:
      return {http_status, "invalid_request_error", "bad_request"};
  }
}

std::string Body(std::string_view message, const ErrorKind& kind, std::string_view code,
                 const std::string& param) {
  std::string out = R"({"error":{"message":)";
  AppendJsonString(message, out);
  out += R"(,"type":)";
  AppendJsonString(kind.type, out);
  out += R"(,"param":)";
  if (param.empty()) {
    out += "null";
  } else {
    AppendJsonString(param, out);
  }
  out += R"(,"code":)";
  AppendJsonString(code, out);
  return out + "}}";
}

struct Shown {
  ErrorKind kind;
  std::string message;
  std::string param;
  std::string code;
};

Shown Show(const absl::Status& status) {
  const ErrorDetail detail = DetailOf(status);
  Shown shown{.kind = ErrorKindOf(status.code(), detail.reason), .param = HttpNameOf(detail.field)};
  shown.message = ErrorMessage(status, /*internal=*/shown.kind.status == 500);
  shown.code = detail.reason.empty() ? std::string(shown.kind.code) : detail.reason;
  return shown;
}

bool IsRetryable(int status) { return status == 408 || status == 429 || status == 503; }

}  // namespace

HttpResponse ErrorResponse(const absl::Status& status) {
  const Shown shown = Show(status);
  HttpResponse response{.status = shown.kind.status,
                        .headers = {{"content-type", "application/json"}}};
  AddRetryHeaders(IsRetryable(shown.kind.status),
                  DetailOf(status).retry_after.value_or(kDefaultRetry), response);
  if (shown.kind.status == 401) response.headers.push_back({"www-authenticate", "Bearer"});
  response.body = Body(shown.message, shown.kind, shown.code, shown.param);
  return response;
}

HttpResponse ErrorResponse(int http_status, const std::string& message) {
  const ErrorKind kind = ErrorKindOf(http_status);
  HttpResponse response{.status = kind.status, .headers = {{"content-type", "application/json"}}};
  AddRetryHeaders(IsRetryable(kind.status), kDefaultRetry, response);
  response.body = Body(message, kind, kind.code, "");
  return response;
}

std::string ErrorJson(const absl::Status& status) {
  const Shown shown = Show(status);
  return Body(shown.message, shown.kind, shown.code, shown.param);
}

std::string ErrorText(const absl::Status& status) { return Show(status).message; }

}  // namespace penstock
