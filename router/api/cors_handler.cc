#include "router/api/cors_handler.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace penstock {
namespace {

constexpr char kAll[] = "*";
// Headers of answers that pages may read beside those that browsers always show.
constexpr char kExposed[] = "x-request-id, request-id, x-should-retry, retry-after, retry-after-ms";
constexpr char kPreflightAgeSeconds[] = "600";

bool IsHostChar(unsigned char c) {
  return std::isdigit(c) != 0 || std::islower(c) != 0 ||
         std::string_view("-._[]:").find(static_cast<char>(c)) != std::string_view::npos;
}

// True for scheme://host[:port] as browsers write it: in lower case, and without a path.
bool IsOrigin(std::string_view text) {
  for (const std::string_view scheme : {"https://", "http://"}) {
    if (!text.starts_with(scheme)) continue;
    const std::string_view host = text.substr(scheme.size());
    return !host.empty() && std::ranges::all_of(host, IsHostChar);
  }
  return false;
}

// True for a list of header names. What browsers ask for goes back into an answer.
bool IsNameList(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == ',' || c == ' ';
  });
}

}  // namespace

absl::StatusOr<CorsPolicy> CorsPolicy::Parse(const std::vector<std::string>& origins) {
  CorsPolicy policy;
  for (const std::string& origin : origins) {
    if (origin == kAll && origins.size() == 1) {
      policy.all_ = true;
    } else if (IsOrigin(origin)) {
      policy.origins_.insert(origin);
    } else {
      return InvalidArgument(
          "cors_allow_origins has `{}`; it must be * alone, or origins such as "
          "https://chat.example.com or http://localhost:3000, in lower case and without a path",
          origin);
    }
  }
  return policy;
}

std::optional<std::string> CorsPolicy::Allow(const std::string& origin) const {
  if (all_) return kAll;
  if (!origins_.contains(origin)) return std::nullopt;
  return origin;
}

bool CorsHandler::IsPreflight(const HttpHead& head) const {
  if (head.method != "OPTIONS" || head.Find("access-control-request-method") == nullptr) {
    return false;
  }
  const std::string* origin = head.Find("origin");
  return origin != nullptr && policy_.Allow(*origin).has_value();
}

std::vector<HttpHeader> CorsHandler::AnswerHeaders(const HttpHead& head) {
  std::vector<HttpHeader> headers;
  // Caches must not give one origin's answer to another, nor to a request without one.
  if (!policy_.allows_all()) headers.push_back({"vary", "Origin"});
  const std::string* origin = head.Find("origin");
  if (origin == nullptr) return headers;
  std::optional<std::string> allowed = policy_.Allow(*origin);
  if (!allowed) return headers;
  headers.push_back({"access-control-allow-origin", *std::move(allowed)});
  headers.push_back({"access-control-expose-headers", kExposed});
  return headers;
}

std::optional<HttpResponse> CorsHandler::Screen(const HttpHead& head) {
  if (IsPreflight(head)) return std::nullopt;
  return next_.Screen(head);
}

void CorsHandler::Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  if (!IsPreflight(request.head)) return next_.Handle(std::move(request), std::move(exchange));
  HttpResponse response{.status = 200,
                        .headers = {{"access-control-allow-methods", "GET, HEAD, POST"},
                                    {"access-control-max-age", kPreflightAgeSeconds}}};
  const std::string* names = request.head.Find("access-control-request-headers");
  if (names != nullptr && IsNameList(*names)) {
    response.headers.push_back({"access-control-allow-headers", *names});
  }
  exchange->Respond(std::move(response));
}

}  // namespace penstock
