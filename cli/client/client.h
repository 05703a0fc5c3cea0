#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/lifecycle.h"
#include "base/status.h"
#include "cli/client/commands.h"
#include "proto/inference.pb.h"

namespace grpc {
class ClientContext;
}

namespace penstock {

class Interrupts;

// Talks to a router. Errors come with what to do next. Main thread.
class InferenceClient {
 public:
  // Each call returns the error of an invalid `router.tls` or `router.api_key`.
  explicit InferenceClient(RouterOptions router);
  ~InferenceClient();

  // False: the reader wants no more.
  using OnResponse = std::function<bool(const v1::GenerateResponse&)>;

  // Streams until the end, an error, or a signal, which cancels the call; `signal` is then its
  // number.
  absl::Status Generate(const v1::GenerateRequest& request, Interrupts& interrupts,
                        const OnResponse& on_response, int* signal);

  absl::StatusOr<v1::ListModelsResponse> ListModels(std::chrono::milliseconds timeout);

 private:
  struct Channel;
  void AddKey(grpc::ClientContext& context) const;

  const RouterOptions router_;
  absl::StatusOr<std::unique_ptr<Channel>> channel_;
};

// The exit code of a command whose call ended so; a call refused for lack of room may be tried
// again.
ExitCode ExitCodeForCall(const absl::Status& status);

}  // namespace penstock
