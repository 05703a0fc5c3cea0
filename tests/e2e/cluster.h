#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "proto/inference.grpc.pb.h"
#include "proto/worker.pb.h"
#include "tests/e2e/process.h"

namespace penstock {

// A real worker process of a test's cluster.
struct WorkerProcess {
  std::string role;  // "prefill" or "decode"
  std::string endpoint;
  Process process;

  // What it says of itself now; nullopt when it does not answer within `patience`.
  std::optional<v1::WorkerState> State(
      std::chrono::milliseconds patience = std::chrono::seconds(2)) const;
};

// A router and workers, all real processes on loopback, with the bundled model.
class Cluster {
 public:
  struct Options {
    int prefill = 1;
    int decode = 1;
    std::vector<std::string> prefill_flags;  // of every prefill worker
    std::vector<std::string> decode_flags;
    std::vector<std::string> first_prefill_flags;  // of the first one only
    std::vector<std::string> first_decode_flags;
    std::vector<std::string> router_flags;
  };

  // Starts all and waits until the router serves. CHECKs, with the logs, when that fails.
  explicit Cluster(const Options& options);
  ~Cluster();

  v1::Inference::Stub& client() { return *client_; }
  const std::string& endpoint() const { return router_endpoint_; }
  const std::string& http_endpoint() const { return http_endpoint_; }
  std::vector<WorkerProcess>& prefill() { return prefill_; }
  std::vector<WorkerProcess>& decode() { return decode_; }

  // Whether every running worker has all its blocks free and no handoff open, within `patience`.
  bool AllBlocksFree(std::chrono::milliseconds patience);
  std::string Logs() const;

 private:
  WorkerProcess StartWorker(const std::string& role, int index,
                            const std::vector<std::vector<std::string>>& flags);
  void StartRouter(const std::vector<std::string>& flags);

  TemporaryFolder folder_;
  std::vector<WorkerProcess> prefill_, decode_;
  std::unique_ptr<Process> router_;
  std::string router_endpoint_;
  std::string http_endpoint_;
  std::unique_ptr<v1::Inference::Stub> client_;
};

}  // namespace penstock
