#include "router/page/page_handler.h"

#include <algorithm>

#include "router/openai/error.h"

namespace penstock {
namespace {

constexpr std::string_view kReportPath = "/cluster";

// Allows the page's own files only: no other origin, no inline code, no framing.
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'";

std::vector<HttpHeader> HeadersFor(std::string_view type) {
  return {{"content-type", std::string(type)},
          {"content-security-policy", kPolicy},
          {"x-content-type-options", "nosniff"},
          {"x-frame-options", "DENY"},
          {"referrer-policy", "no-referrer"},
          {"cross-origin-opener-policy", "same-origin"},
          {"cross-origin-resource-policy", "same-origin"}};
}

}  // namespace

const PageAsset* PageHandler::Find(std::string_view path) {
  const std::span<const PageAsset> assets = PageAssets();
  const auto found = std::find_if(assets.begin(), assets.end(),
                                  [&](const PageAsset& asset) { return asset.path == path; });
  return found == assets.end() ? nullptr : &*found;
}

bool PageHandler::IsOwnPath(std::string_view path) {
  return path == kReportPath || Find(path) != nullptr;
}

std::vector<HttpHeader> PageHandler::AnswerHeaders(const HttpHead& head) {
  return IsOwnPath(head.path) ? std::vector<HttpHeader>() : args_.api.AnswerHeaders(head);
}

std::optional<HttpResponse> PageHandler::Screen(const HttpHead& head) {
  if (!IsOwnPath(head.path)) return args_.api.Screen(head);
  if (head.path == kReportPath && args_.keys != nullptr) {
    const auto caller = args_.keys->Authenticate(head.Find("authorization"));
    if (!caller.ok()) return ErrorResponse(caller.status());
  }
  if (head.method != "GET" && head.method != "HEAD") {
    HttpResponse refusal =
        ErrorResponse(405, fmt::format("{}: method not allowed; use GET", head.path));
    refusal.headers.push_back({"allow", "GET"});
    return refusal;
  }
  return std::nullopt;
}

std::string PageHandler::AccountOf(const HttpHead& head) {
  return IsOwnPath(head.path) ? "" : args_.api.AccountOf(head);
}

void PageHandler::Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  if (const PageAsset* asset = Find(request.head.path); asset != nullptr) {
    HttpResponse response{.headers = HeadersFor(asset->type), .body = std::string(asset->body)};
    response.headers.push_back({"cache-control", "no-cache"});
    return exchange->Respond(std::move(response));
  }
  if (request.head.path != kReportPath) {
    return args_.api.Handle(std::move(request), std::move(exchange));
  }
  Caller caller;
  if (args_.keys != nullptr) {
    auto known = args_.keys->Authenticate(request.head.Find("authorization"));
    if (!known.ok()) return exchange->Respond(ErrorResponse(known.status()));
    caller = *std::move(known);
  }
  HttpResponse response{.headers = HeadersFor("application/json"),
                        .body = JsonText(args_.report.For(caller))};
  response.headers.push_back({"cache-control", "no-store"});
  exchange->Respond(std::move(response));
}

HttpResponse PageHandler::Refuse(int status, const std::string& message) {
  return args_.api.Refuse(status, message);
}

}  // namespace penstock
