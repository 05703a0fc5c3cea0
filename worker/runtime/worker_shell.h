#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/lifecycle.h"
#include "base/metrics/metrics.h"
#include "base/mutex.h"
#include "base/rpc/process_info.h"
#include "base/rpc/rpc_server.h"
#include "base/rpc/tls.h"
#include "proto/worker.pb.h"
#include "worker/engine/model_host.h"
#include "worker/engine/watchdog.h"
#include "worker/runtime/status_service.h"
#include "worker/runtime/worker_admin.h"
#include "worker/runtime/worker_identity.h"

namespace penstock {

// What a worker has around its engines: model and pool, metrics, the private gRPC server, and the
// state that routers watch. Constructed before the engines; Stop() before they are gone.
class WorkerShell {
 public:
  struct Options {
    v1::WorkerState::Role role = v1::WorkerState::ROLE_UNSPECIFIED;  // its first one
    std::string worker_id;                     // empty: that role and the port, for good
    std::string listen;                        // host:port of the private service
    std::string metrics_listen;                // empty: no metrics
    Duration stall = std::chrono::seconds(5);  // without a beat the worker is unhealthy
    ProcessInfo process;
    TlsFiles cluster;  // no paths: callers and peers speak plain
    ModelHost::Options model;
  };
  // What a shell shows and passes on; called on gRPC's and other threads, and quick.
  struct Served {
    std::function<void(v1::WorkerState*)> describe;  // all that may change, its role too
    std::function<uint64_t()> beats;                 // of the engine that works
    StatusService::Subscribe subscribe;              // to what the prefix cache can serve
    WorkerAdmin::Turn turn;                          // to another role
  };

  // Loads the model and maps the pool. Errors name field, file, address or memory.
  static absl::StatusOr<std::unique_ptr<WorkerShell>> Open(Options options);
  ~WorkerShell();

  const Clock& clock() const { return clock_; }
  // Of channels to other workers.
  std::shared_ptr<grpc::ChannelCredentials> peer_credentials() const {
    return ChannelCredentialsOf(cluster_);
  }
  ModelHost& host() { return *host_; }
  MetricsRegistry& metrics() { return metrics_; }
  const std::string& endpoint() const { return server_->endpoint(); }
  bool draining() const { return stopping_ || asked_to_drain_ || turning_; }

  // From here on the worker is there for everybody. `services` outlive Stop().
  // The engine's beats are watched until StopWatches.
  absl::Status Serve(std::vector<grpc::Service*> services, Served served);

  // The worker drains in order to turn to another role, or does so no more. Any thread.
  void OnTurning(bool turning);

  // Tells health checks and routers to send nothing more: the process is to stop.
  void BeginDrain();
  // Ends the routers' watches: nobody counts on us any more.
  void StopWatches();
  // Ends what calls are left, and the metrics.
  void Stop();

 private:
  explicit WorkerShell(Options options) : options_(std::move(options)) {}
  v1::WorkerState State() const;
  void ShowHealth() EXCLUDES(health_mutex_);
  void OnStall(bool stalled);
  absl::Status SetDraining(bool draining);  // as an operator asks
  absl::Status StartMetrics();

  const Options options_;
  SteadyClock clock_;
  MetricsRegistry metrics_;
  std::shared_ptr<TlsIdentity> cluster_;  // null: plain; shared with the server
  std::unique_ptr<ModelHost> host_;
  Served served_;
  v1::WorkerState described_;  // what does not change; complete before `ready_`
  std::atomic<bool> ready_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> asked_to_drain_{false};
  std::atomic<bool> turning_{false};
  std::atomic<bool> stalled_{false};
  Mutex health_mutex_;  // one who shows health at a time
  std::unique_ptr<StatusService> status_;
  std::unique_ptr<WorkerAdmin> admin_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<MetricsServer> metrics_server_;
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace penstock
