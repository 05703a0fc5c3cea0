#pragma once

#include <memory>
#include <string>

#include "http/exchange.h"
#include "router/inference/inference_core.h"
#include "router/request/key_ring.h"

namespace penstock {

// Room router/anthropic: Anthropic's Messages API over HTTP: parses its JSON to GenerateRequests
// and writes answers and errors as Anthropic's SDKs expect. It knows HTTP exchanges and the
// inference core; it may not know workers, placement or other APIs.

struct AnthropicHandlerArgs {
  InferenceCore& core;      // outlives the handler
  KeyRing* keys = nullptr;  // outlives the handler; nullptr: authentication is off
  Duration request_limit = std::chrono::seconds(600);
  HttpHandler& next;  // handles all other paths; outlives the handler
};

// The caller of a request: the key is in x-api-key, or in Authorization as for other APIs. Errors
// of KeyRing::Authenticate. `keys` may be nullptr: authentication is off.
absl::StatusOr<Caller> MessageCaller(KeyRing* keys, const HttpHead& head);

// Serves /v1/messages and /v1/messages/count_tokens. Any thread.
class AnthropicHandler final : public HttpHandler {
 public:
  explicit AnthropicHandler(const AnthropicHandlerArgs& args) : args_(args) {}

  std::optional<HttpResponse> Screen(const HttpHead& head) override;
  std::string AccountOf(const HttpHead& head) override;
  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
  HttpResponse Refuse(int status, const std::string& message) override;

 private:
  absl::StatusOr<Caller> Authenticate(const HttpHead& head) {
    return MessageCaller(args_.keys, head);
  }
  void CreateMessage(const HttpRequest& request, const std::string& id,
                     const std::shared_ptr<Exchange>& exchange);
  absl::StatusOr<HttpResponse> CountTokens(const HttpRequest& request, const std::string& id);

  const AnthropicHandlerArgs args_;
};

}  // namespace penstock
