#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "http/exchange.h"
#include "router/inference/inference_core.h"
#include "router/openai/answer_route.h"
#include "router/request/key_ring.h"

namespace penstock {

// Room router/openai: the OpenAI-compatible HTTP API: parses its JSON to GenerateRequests and
// writes answers and errors as OpenAI's SDKs expect. It knows HTTP exchanges and the inference
// core; it may not know workers, placement or sessions' inner workings.

struct OpenAiHandlerArgs {
  InferenceCore& core;      // outlives the handler
  KeyRing* keys = nullptr;  // outlives the handler; nullptr: authentication is off
  std::string version;
  Duration request_limit = std::chrono::seconds(600);
  std::vector<AnswerRoute> more_routes = {};  // beside chat and text completions
};

// Serves chat and text completions and further routes like them, models, tokenize, health and
// readiness. Any thread.
class OpenAiHandler final : public HttpHandler {
 public:
  explicit OpenAiHandler(OpenAiHandlerArgs args);
  ~OpenAiHandler() override;

  std::optional<HttpResponse> Screen(const HttpHead& head) override;
  std::string AccountOf(const HttpHead& head) override;
  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
  HttpResponse Refuse(int status, const std::string& message) override;

  // Makes /ready answer 503 from now on.
  void Drain() { draining_ = true; }

 private:
  struct Route;
  const Route* Find(std::string_view path) const;

  absl::StatusOr<Caller> Authenticate(const HttpHead& head);

  // Answers the exchange.
  void Generate(const HttpRequest& request, std::shared_ptr<Exchange> exchange,
                const AnswerRoute& route);

  absl::StatusOr<HttpResponse> Models(const HttpRequest& request);
  absl::StatusOr<HttpResponse> Tokenize(const HttpRequest& request);
  absl::StatusOr<HttpResponse> Detokenize(const HttpRequest& request);
  absl::StatusOr<HttpResponse> Health(const HttpRequest& request);
  absl::StatusOr<HttpResponse> Ready(const HttpRequest& request);
  absl::StatusOr<HttpResponse> Version(const HttpRequest& request);

  const OpenAiHandlerArgs args_;
  const int64_t started_;  // Unix seconds
  std::vector<Route> routes_;
  std::atomic<bool> draining_{false};
};

}  // namespace penstock
