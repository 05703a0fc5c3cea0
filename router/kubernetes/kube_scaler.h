#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/metrics/metrics.h"
#include "base/mutex.h"
#include "router/kubernetes/kube_api.h"
#include "router/kubernetes/lease.h"
#include "router/scaling/scale_target.h"

namespace penstock {

struct KubeScalerOptions {
  std::string api;      // https://host:port
  std::string account;  // directory with token, ca.crt and namespace
  std::string lease;    // names within the namespace
  std::string prefill_deployment;
  std::string decode_deployment;
  std::string id;  // this router, as the holder of the Lease
  LeaseTimes times;
};

// Metrics of the calls to the API server.
struct KubeMetrics {
  explicit KubeMetrics(MetricsRegistry& registry);

  prometheus::Counter& lease_errors;
  prometheus::Counter& read_errors;
  prometheus::Counter& write_errors;
};

// Two Deployments as the target of autoscaling, for the one router that holds the Lease. A thread
// of its own calls the API server, so that a slow one delays nothing else; every error is logged
// once until the step succeeds again, and tried again. Any thread.
class KubeScaler final : public ScaleTarget {
 public:
  // Errors of KubeApi::Create; INVALID_ARGUMENT names a missing field; FAILED_PRECONDITION: the
  // account has no namespace. `clock` and `metrics` outlive the scaler.
  static absl::StatusOr<std::unique_ptr<KubeScaler>> Start(KubeScalerOptions options,
                                                           const Clock& clock,
                                                           KubeMetrics& metrics);
  // Releases the Lease, so that another router decides at once.
  ~KubeScaler() override;

  bool leads() override EXCLUDES(mutex_);
  std::optional<ReplicaCounts> Wanted() override EXCLUDES(mutex_);
  void Want(const ReplicaCounts& counts) override EXCLUDES(mutex_);

 private:
  KubeScaler(KubeScalerOptions options, std::string space, std::unique_ptr<KubeApi> api,
             const Clock& clock, KubeMetrics& metrics);

  void Loop();
  bool ReadIsDue(TimePoint now) EXCLUDES(mutex_);
  bool Wait(Duration time) EXCLUDES(mutex_);  // false: stop
  absl::Status HoldLease() EXCLUDES(mutex_);
  absl::Status Read() EXCLUDES(mutex_);
  absl::Status Write() EXCLUDES(mutex_);
  absl::Status WriteOne(const std::string& deployment, uint32_t ReplicaCounts::*role)
      EXCLUDES(mutex_);
  void Release() EXCLUDES(mutex_);
  // A reply with a status of 2xx, or the error.
  absl::StatusOr<KubeReply> Call(const KubeCall& call);
  bool Throttled() const { return clock_.Now() < not_before_; }
  bool SafeToWrite() const EXCLUDES(mutex_);
  void Report(const char* step, const absl::Status& status, prometheus::Counter& errors);
  void ShowLeader() EXCLUDES(mutex_);
  void Forget() REQUIRES(mutex_);
  std::string LeasePath(bool one) const;
  std::string ScalePath(const std::string& deployment) const;

  const KubeScalerOptions options_;
  const std::string space_;  // the namespace
  const std::unique_ptr<KubeApi> api_;
  const Clock& clock_;
  KubeMetrics& metrics_;

  // Only the thread uses these.
  std::map<std::string, std::string> reported_;  // the last error of each step
  TimePoint not_before_{};                       // until then the server has asked to wait
  TimePoint next_read_{};
  bool was_leader_ = false;

  mutable Mutex mutex_;
  CondVar changed_;
  LeaseElector elector_ GUARDED_BY(mutex_);
  std::optional<ReplicaCounts> wanted_ GUARDED_BY(mutex_);
  std::optional<ReplicaCounts> written_ GUARDED_BY(mutex_);  // as the API server has it
  bool pending_ GUARDED_BY(mutex_) = false;                  // wanted_ is to be written
  bool woken_ GUARDED_BY(mutex_) = false;
  bool stopped_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace penstock
