#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "http/exchange.h"

namespace penstock {

// The origins of web pages that may call the API and read its answers: scheme://host[:port], or all
// of them. Immutable.
class CorsPolicy {
 public:
  // `origins` is the value of --cors_allow_origins: "*", or origins. INVALID_ARGUMENT names the one
  // that is neither, and what an origin looks like.
  static absl::StatusOr<CorsPolicy> Parse(const std::vector<std::string>& origins);

  // The value of access-control-allow-origin for a request with this Origin; nullopt: none.
  std::optional<std::string> Allow(const std::string& origin) const;
  bool allows_all() const { return all_; }

 private:
  bool all_ = false;
  std::set<std::string> origins_;
};

// Lets pages of other origins call the next handler (CORS): answers their preflights, which have no
// key, and adds headers to the answers and errors that they get. Credentials are never allowed:
// browsers send no cookies, and pages must have a key where one is needed. Any thread.
// Source: https://fetch.spec.whatwg.org/#http-cors-protocol
class CorsHandler final : public HttpHandler {
 public:
  // `next` outlives the handler.
  CorsHandler(CorsPolicy policy, HttpHandler& next) : policy_(std::move(policy)), next_(next) {}

  std::vector<HttpHeader> AnswerHeaders(const HttpHead& head) override;
  std::optional<HttpResponse> Screen(const HttpHead& head) override;
  std::string AccountOf(const HttpHead& head) override { return next_.AccountOf(head); }
  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
  HttpResponse Refuse(int status, const std::string& message) override {
    return next_.Refuse(status, message);
  }

 private:
  bool IsPreflight(const HttpHead& head) const;

  const CorsPolicy policy_;
  HttpHandler& next_;
};

}  // namespace penstock
