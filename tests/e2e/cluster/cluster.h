#pragma once

#include <grpcpp/security/credentials.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lab/fake/temp_folder.h"
#include "proto/inference.grpc.pb.h"
#include "proto/worker.pb.h"
#include "tests/e2e/cluster/process.h"

namespace penstock {

// A real worker process of a test's cluster.
struct WorkerProcess {
  std::string role;  // "prefill" or "decode"
  std::string id;    // "prefill-0" and so on
  std::string endpoint;
  Process process;
  std::vector<std::string> command;                       // that started it
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // of channels to it

  // The worker's state now; nullopt when it does not answer within `patience`.
  std::optional<v1::WorkerState> State(
      std::chrono::milliseconds patience = std::chrono::seconds(30)) const;
};

struct RouterProcess {
  std::unique_ptr<Process> process;
  std::string endpoint;
  std::string http_endpoint;
  std::string admin_endpoint;  // empty: it has none
  std::unique_ptr<v1::Inference::Stub> client;
};

// Flags of a worker with 15 blocks (one of the bundled model is 40 KiB; a prompt of 200 tokens has
// 13), and `more`.
std::vector<std::string> TinyPool(const std::vector<std::string>& more);

// --cluster_ca and so on for the files in a folder.
std::vector<std::string> ClusterFlags(const std::string& identity);

// A router and workers, all real processes on loopback, with the bundled model.
class Cluster {
 public:
  struct Options {
    std::string model;  // of every process; empty: the bundled one
    int prefill = 1;
    int decode = 1;
    std::vector<std::string> prefill_flags;  // of every prefill worker
    std::vector<std::string> decode_flags;
    std::vector<std::string> first_prefill_flags;  // of the first one only
    std::vector<std::string> first_decode_flags;
    std::vector<std::string> router_flags;
    std::string api_key;  // that the router wants; empty: none
    // With tls.crt, tls.key and ca.crt of every process; the router's public port shows it too.
    // Empty: everybody speaks plain.
    std::string identity;
    std::string worker_suffix;  // of the workers' binaries: "-emulated" for emulated GPUs
  };

  // Starts all and waits until the router serves with every worker. CHECKs, with the logs, when
  // that fails.
  explicit Cluster(const Options& options);
  ~Cluster();

  // In the place of one that has ended: the same endpoint, once it listens again and the router has
  // seen it. CHECKs as above.
  void Restart(WorkerProcess& worker);
  // Another router in front of the same workers; serves when this returns.
  RouterProcess& StartAnotherRouter();
  void KillRouter();
  // The router is killed and another one takes its place, at another address.
  void ReplaceRouter();

  v1::Inference::Stub& client() { return *router_.client; }
  const std::string& endpoint() const { return router_.endpoint; }
  const std::string& http_endpoint() const { return router_.http_endpoint; }
  const std::string& admin_endpoint() const { return router_.admin_endpoint; }
  std::vector<WorkerProcess>& prefill() { return prefill_; }
  std::vector<WorkerProcess>& decode() { return decode_; }
  WorkerProcess* RunningDecoder();  // a decode worker that decodes now; null: none does

  // True when, within `patience`, every running worker has all its blocks free and no handoff open.
  bool AllBlocksFree(std::chrono::milliseconds patience);
  std::string Logs() const;

 private:
  WorkerProcess StartWorker(const std::string& role, int index,
                            const std::vector<std::vector<std::string>>& flags);
  // Serves, with every worker that runs, when this returns.
  RouterProcess StartRouter(const std::string& name);
  // How often the router has found this worker ready, by its log.
  static int TimesSeenReady(const RouterProcess& router, const WorkerProcess& worker);

  const std::string model_;
  TempFolder folder_;
  std::vector<WorkerProcess> prefill_, decode_;
  std::vector<std::string> router_flags_;
  std::string api_key_;
  std::string identity_;
  std::string worker_suffix_;
  RouterProcess router_;
  std::vector<RouterProcess> more_routers_;
};

}  // namespace penstock
