#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "lab/fake/fake_worker.h"
#include "proto/inference.grpc.pb.h"
#include "router/router_server.h"

namespace penstock {

struct ClusterOptions {
  int prefill = 1;
  int decode = 1;
  uint32_t max_requests = 2048;
  Duration worker_wait = std::chrono::seconds(2);
  Duration stale_after = std::chrono::seconds(3);
  Duration client_stall = std::chrono::seconds(30);
  Duration request_limit = std::chrono::seconds(60);
  uint32_t http_connections = 4096;
  std::string keys_file;
  std::vector<std::string> cors_allow_origins;
  std::string workers_file;  // instead of the list
  Duration queue_wait{};
  uint32_t queued_max = 1024;
  bool page = true;
  std::string otlp_endpoint;  // empty: no spans
  bool picker = false;        // serve the endpoint picker
};

// A router over fake workers, in this process, over real sockets.
class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options = {});

  // Fake workers die before the router, so that nothing holds it up.
  ~Cluster();

  bool WaitForReady(bool ready = true);

  std::vector<std::unique_ptr<FakeWorker>> prefill;
  std::vector<std::unique_ptr<FakeWorker>> decode;
  std::unique_ptr<RouterServer> router;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inference::Stub> stub;
};

std::unique_ptr<FakeWorker> StartFake(v1::WorkerState::Role role, const std::string& id);

// The prompt of all requests, `max_tokens` of answer with seed 7.
inline constexpr char kClusterPrompt[] = "Once upon a time";
v1::GenerateRequest Request(uint32_t max_tokens);
// The answer to that request.
std::string ExpectedAnswer(uint32_t choice, uint32_t tokens);

struct Answer {
  std::map<uint32_t, std::string> text;  // by choice
  std::map<uint32_t, uint64_t> next_sequence;
  std::vector<v1::Final> endings;
  grpc::Status status;
};

// One streaming call. Checks that sequences have no gap while it reads.
class Call {
 public:
  Call(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
       std::chrono::system_clock::time_point deadline = std::chrono::system_clock::now() +
                                                        std::chrono::seconds(120));

  // Until choice 0 has this many bytes of text. False when the stream ended before.
  bool ReadText(size_t bytes);
  Answer& ReadAll();
  Answer& answer() { return answer_; }
  grpc::ClientContext& context() { return context_; }

 private:
  bool ReadOne();

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
  Answer answer_;
};

}  // namespace penstock
