#pragma once

#include <memory>

#include "base/status.h"
#include "lab/fake/fake_worker.h"
#include "proto/inference.grpc.pb.h"
#include "proto/worker.grpc.pb.h"
#include "router/router_server.h"

namespace penstock {

struct RouterProbeOptions {
  Duration token_every{};      // between two tokens of any answer
  uint32_t answer_tokens = 8;  // of what the probe asks
  uint32_t max_requests = 4096;
};

// A router in this process between one prefill and one decode worker that compute nothing, over
// loopback sockets: how long the first token takes through it, and without it.
class RouterProbe {
 public:
  // UNAVAILABLE when the router does not get ready.
  static absl::StatusOr<std::unique_ptr<RouterProbe>> Start(const RouterProbeOptions& options = {});

  // Milliseconds to the first message of a short answer; the rest is read and not timed.
  absl::StatusOr<double> AskRouter();
  absl::StatusOr<double> AskPrefillWorker();

  // The request of AskRouter, for an answer of `answer_tokens`.
  static v1::GenerateRequest Request(uint32_t answer_tokens);
  v1::Inference::Stub& router() { return *router_stub_; }

 private:
  explicit RouterProbe(const RouterProbeOptions& options);

  const RouterProbeOptions options_;
  FakeWorker prefill_;
  FakeWorker decode_;
  std::unique_ptr<RouterServer> router_;  // goes before its workers
  std::unique_ptr<v1::PrefillWorker::Stub> worker_stub_;
  std::unique_ptr<v1::Inference::Stub> router_stub_;
};

}  // namespace penstock
