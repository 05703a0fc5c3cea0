#pragma once

#include <atomic>
#include <string>

#include "http/exchange.h"
#include "router/inference/inference_core.h"
#include "router/request/key_ring.h"

namespace penstock {

struct OpenAiHandlerArgs {
  InferenceCore& core;      // outlives the handler
  KeyRing* keys = nullptr;  // likewise; null: whoever reaches the port may ask
  std::string version;
  Duration request_limit = std::chrono::seconds(600);
};

// The OpenAI API and what goes with it: models, tokenizing, health.
class OpenAiHandler final : public HttpHandler {
 public:
  explicit OpenAiHandler(OpenAiHandlerArgs args);

  std::optional<HttpResponse> Screen(const HttpHead& head) override;
  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
  HttpResponse Refuse(int status, const std::string& message) override;

  // From now on /ready says no.
  void Drain() { draining_ = true; }

 private:
  struct Route;
  static const Route* Find(std::string_view path);

  absl::StatusOr<Caller> Authenticate(const HttpHead& head);

  // Each answers the exchange.
  void Chat(const HttpRequest& request, std::shared_ptr<Exchange> exchange);
  void Complete(const HttpRequest& request, std::shared_ptr<Exchange> exchange);
  void Generate(const HttpRequest& request, std::shared_ptr<Exchange> exchange, bool chat);

  absl::StatusOr<HttpResponse> Models(const HttpRequest& request);
  absl::StatusOr<HttpResponse> Tokenize(const HttpRequest& request);
  absl::StatusOr<HttpResponse> Detokenize(const HttpRequest& request);
  absl::StatusOr<HttpResponse> Health(const HttpRequest& request);
  absl::StatusOr<HttpResponse> Ready(const HttpRequest& request);
  absl::StatusOr<HttpResponse> Version(const HttpRequest& request);

  const OpenAiHandlerArgs args_;
  const int64_t started_;  // Unix seconds
  std::atomic<bool> draining_{false};
};

}  // namespace penstock
