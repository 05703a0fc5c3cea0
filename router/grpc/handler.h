#pragma once

#include <string>
#include <string_view>

#include "http/exchange.h"
#include "router/grpc/health_board.h"
#include "router/inference/inference_core.h"
#include "router/request/key_ring.h"

namespace penstock {

// Room router/grpc: the public gRPC API on the router's own HTTP/2 server: framing, statuses,
// health and reflection. It knows HTTP exchanges and the inference core; it may not know workers,
// placement or sessions' inner workings.

struct GenerateForm;

struct GrpcHandlerArgs {
  InferenceCore& core;      // outlives the handler
  KeyRing* keys = nullptr;  // outlives the handler; nullptr: authentication is off
  bool reflection = false;
  size_t standing_streams_max = 1024;  // open streams of health watches and reflection
};

// Serves penstock.v1.Inference, grpc.health.v1 and server reflection to gRPC clients over HTTP/2.
// Any thread.
class GrpcHandler final : public HttpHandler {
 public:
  explicit GrpcHandler(const GrpcHandlerArgs& args);

  std::optional<HttpResponse> Screen(const HttpHead& head) override;
  std::string AccountOf(const HttpHead& head) override;
  std::shared_ptr<BodySink> Open(const HttpHead& head,
                                 const std::shared_ptr<Exchange>& exchange) override;
  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
  HttpResponse Refuse(int status, const std::string& message) override;

  // Sets the health of a service; "" is the whole server. Any thread.
  void SetServing(const std::string& service, bool serving) { health_.Set(service, serving); }
  // Ends the streams of health watches and reflection, and refuses new ones. Any thread.
  void EndStandingStreams() { streams_.EndAll(); }

 private:
  struct Method;
  const Method* Find(std::string_view path) const;
  absl::StatusOr<Caller> Authenticate(const HttpHead& head) const;
  absl::Status Check(const HttpHead& head) const;

  // Each method answers the exchange, or returns the error to answer with.
  absl::Status StartGenerate(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange,
                             const GenerateForm& form);
  absl::Status Generate(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  absl::Status GenerateUnary(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  absl::Status WarmPrefix(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  absl::Status Tokenize(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  absl::Status Detokenize(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  absl::Status ListModels(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  absl::Status CheckHealth(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  absl::Status WatchHealth(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);

  const GrpcHandlerArgs args_;
  StandingStreams streams_;
  HealthBoard health_{streams_};
};

}  // namespace penstock
