#include "router/kubernetes/kube_scaler.h"

#include <fstream>
#include <utility>

#include "base/log/log.h"
#include "router/kubernetes/kube_objects.h"

namespace penstock {
namespace {

// Reads of the replicas, in retries of the Lease.
constexpr int kReadEvery = 5;
constexpr char kMergePatch[] = "application/merge-patch+json";

std::string Now() { return MicroTime(std::chrono::system_clock::now()); }

absl::StatusOr<std::string> ReadNamespace(const std::string& account) {
  std::ifstream file(account + "/namespace");
  std::string space;
  if (std::getline(file, space) && !space.empty()) return space;
  return FailedPrecondition(
      "kubernetes_account={} has no file `namespace`: it must be the directory of a service "
      "account",
      account);
}

absl::Status CheckNames(const KubeScalerOptions& options) {
  const std::pair<const char*, const std::string&> fields[] = {
      {"prefill_deployment", options.prefill_deployment},
      {"decode_deployment", options.decode_deployment},
      {"autoscale_lease", options.lease},
      {"router_id", options.id}};
  for (const auto& [name, value] : fields) {
    if (value.empty()) return InvalidArgument("autoscale=act needs {}", name);
  }
  return absl::OkStatus();
}

prometheus::Counter& Errors(MetricsRegistry& registry, const char* step) {
  return registry.Counter("penstock_router_scale_api_errors_total",
                          "Failed calls to the Kubernetes API (--autoscale=act).",
                          {{"step", step}});
}

}  // namespace

KubeMetrics::KubeMetrics(MetricsRegistry& registry)
    : lease_errors(Errors(registry, "lease")),
      read_errors(Errors(registry, "read")),
      write_errors(Errors(registry, "write")) {}

absl::StatusOr<std::unique_ptr<KubeScaler>> KubeScaler::Start(KubeScalerOptions options,
                                                              const Clock& clock,
                                                              KubeMetrics& metrics) {
  RETURN_IF_ERROR(CheckNames(options));
  ASSIGN_OR_RETURN(std::string space, ReadNamespace(options.account));
  ASSIGN_OR_RETURN(auto api, KubeApi::Create(options.api, options.account));
  std::unique_ptr<KubeScaler> scaler(
      new KubeScaler(std::move(options), std::move(space), std::move(api), clock, metrics));
  scaler->thread_ = std::thread([raw = scaler.get()] { raw->Loop(); });
  return scaler;
}

KubeScaler::KubeScaler(KubeScalerOptions options, std::string space, std::unique_ptr<KubeApi> api,
                       const Clock& clock, KubeMetrics& metrics)
    : options_(std::move(options)),
      space_(std::move(space)),
      api_(std::move(api)),
      clock_(clock),
      metrics_(metrics),
      elector_(options_.id, options_.times) {}

KubeScaler::~KubeScaler() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  api_->SetCancelled(true);
  thread_.join();
  api_->SetCancelled(false);
  Release();
}

bool KubeScaler::leads() {
  MutexLock lock(mutex_);
  return elector_.leads(clock_.Now());
}

std::optional<ReplicaCounts> KubeScaler::Wanted() {
  MutexLock lock(mutex_);
  return elector_.leads(clock_.Now()) ? wanted_ : std::nullopt;
}

void KubeScaler::Want(const ReplicaCounts& counts) {
  MutexLock lock(mutex_);
  if (!elector_.leads(clock_.Now())) return;  // The next leader decides.
  wanted_ = counts;
  pending_ = woken_ = true;
  changed_.NotifyAll();
}

// ---------------------------------------------------------------- the thread

void KubeScaler::Loop() {
  TimePoint next_lease{};
  do {
    const TimePoint now = clock_.Now();
    if (Throttled()) continue;
    if (now >= next_lease) {
      Report("lease", HoldLease(), metrics_.lease_errors);
      ShowLeader();
      next_lease = now + options_.times.retry;
    }
    if (!Throttled() && ReadIsDue(now)) Report("read", Read(), metrics_.read_errors);
    if (!Throttled() && leads()) Report("write", Write(), metrics_.write_errors);
  } while (Wait(options_.times.retry));
}

bool KubeScaler::Wait(Duration time) {
  MutexLock lock(mutex_);
  if (!woken_ && !stopped_) changed_.WaitFor(mutex_, time);
  woken_ = false;
  return !stopped_;
}

bool KubeScaler::ReadIsDue(TimePoint now) {
  MutexLock lock(mutex_);
  if (!elector_.leads(now) || (written_ && now < next_read_)) return false;
  next_read_ = now + kReadEvery * options_.times.retry;
  return true;
}

absl::Status KubeScaler::HoldLease() {
  absl::StatusOr<KubeReply> reply = Call({.path = LeasePath(true), .timeout = options_.times.call});
  std::optional<LeaseRecord> seen;
  if (reply.ok()) {
    ASSIGN_OR_RETURN(seen, ParseLease(reply->body));
  } else if (reply.status().code() != absl::StatusCode::kNotFound) {
    return reply.status();
  }
  std::optional<LeaseRecord> next;
  {
    MutexLock lock(mutex_);
    next = elector_.OnRead(seen, clock_.Now(), Now());
    // A decision of an earlier term is not carried out in a new one.
    if (!seen || seen->holder != options_.id) Forget();
  }
  if (!next) return absl::OkStatus();
  const TimePoint sent = clock_.Now();
  reply = Call({.method = seen ? "PUT" : "POST",
                .path = LeasePath(seen.has_value()),
                .body = LeaseJson(options_.lease, *next),
                .timeout = options_.times.call});
  // Another router was faster. The next read shows it.
  if (reply.status().code() == absl::StatusCode::kAborted) return absl::OkStatus();
  RETURN_IF_ERROR(reply.status());
  ASSIGN_OR_RETURN(const LeaseRecord written, ParseLease(reply->body));
  MutexLock lock(mutex_);
  elector_.OnWritten(written, sent);
  return absl::OkStatus();
}

absl::Status KubeScaler::Read() {
  ReplicaCounts counts;
  const std::pair<const std::string&, uint32_t&> fields[] = {
      {options_.prefill_deployment, counts.prefill}, {options_.decode_deployment, counts.decode}};
  for (const auto& [deployment, replicas] : fields) {
    ASSIGN_OR_RETURN(const KubeReply reply,
                     Call({.path = ScalePath(deployment), .timeout = options_.times.call}));
    ASSIGN_OR_RETURN(replicas, ParseReplicas(reply.body));
  }
  MutexLock lock(mutex_);
  written_ = counts;
  if (!pending_) wanted_ = counts;  // Another one may have changed them.
  return absl::OkStatus();
}

// A Deployment that cannot be changed does not keep the other one from its change.
absl::Status KubeScaler::Write() {
  absl::Status status = WriteOne(options_.prefill_deployment, &ReplicaCounts::prefill);
  if (!Throttled()) status.Update(WriteOne(options_.decode_deployment, &ReplicaCounts::decode));
  MutexLock lock(mutex_);
  if (wanted_ == written_) pending_ = false;
  return status;
}

absl::Status KubeScaler::WriteOne(const std::string& deployment, uint32_t ReplicaCounts::*role) {
  uint32_t replicas = 0;
  {
    MutexLock lock(mutex_);
    if (!pending_ || !written_ || (*wanted_).*role == (*written_).*role) return absl::OkStatus();
    replicas = (*wanted_).*role;
  }
  // The call must be over before another router can hold the Lease.
  if (!SafeToWrite()) return Unavailable("the lease ends too soon to change {}", deployment);
  RETURN_IF_ERROR(Call({.method = "PATCH",
                        .path = ScalePath(deployment),
                        .body = ReplicasPatch(replicas),
                        .content_type = kMergePatch,
                        .timeout = options_.times.call})
                      .status());
  Log(LogLevel::kInfo, "deployment_scaled", {{"deployment", deployment}, {"replicas", replicas}});
  MutexLock lock(mutex_);
  (*written_).*role = replicas;  // only this thread forgets it
  return absl::OkStatus();
}

bool KubeScaler::SafeToWrite() const {
  MutexLock lock(mutex_);
  return elector_.leads(clock_.Now(), options_.times.call);
}

void KubeScaler::Release() {
  std::optional<LeaseRecord> released;
  {
    MutexLock lock(mutex_);
    released = elector_.Release(Now());
  }
  if (!released) return;
  const auto reply = Call({.method = "PUT",
                           .path = LeasePath(true),
                           .body = LeaseJson(options_.lease, *released),
                           .timeout = options_.times.call});
  // If this fails, the lease expires.
  if (reply.ok()) LogInfo("scale_lease_released", "another router may decide");
}

absl::StatusOr<KubeReply> KubeScaler::Call(const KubeCall& call) {
  ASSIGN_OR_RETURN(KubeReply reply, api_->Call(call));
  if (reply.status == 429) not_before_ = clock_.Now() + reply.retry_after;
  RETURN_IF_ERROR(StatusOf(call, reply));
  return reply;
}

void KubeScaler::Report(const char* step, const absl::Status& status, prometheus::Counter& errors) {
  std::string& reported = reported_[step];
  if (status.ok()) {
    if (!reported.empty()) Log(LogLevel::kInfo, "scale_api_recovered", {{"step", step}});
    reported.clear();
    return;
  }
  errors.Increment();
  const std::string text = Message(status);
  if (text == reported) return;
  reported = text;
  Log(LogLevel::kWarning, "scale_api_failed", {{"step", step}, {"error", text}});
}

void KubeScaler::ShowLeader() {
  MutexLock lock(mutex_);
  const bool leader = elector_.leads(clock_.Now());
  if (leader == was_leader_) return;
  was_leader_ = leader;
  if (leader) {
    Log(LogLevel::kInfo, "scale_lease_acquired",
        {{"lease", options_.lease}, {"router", options_.id}});
  } else {
    Forget();
    Log(LogLevel::kInfo, "scale_lease_lost", {{"lease", options_.lease}, {"router", options_.id}});
  }
}

void KubeScaler::Forget() {
  wanted_.reset();
  written_.reset();
  pending_ = false;
}

std::string KubeScaler::LeasePath(bool one) const {
  const std::string path = fmt::format("/apis/coordination.k8s.io/v1/namespaces/{}/leases", space_);
  return one ? path + "/" + options_.lease : path;
}

std::string KubeScaler::ScalePath(const std::string& deployment) const {
  return fmt::format("/apis/apps/v1/namespaces/{}/deployments/{}/scale", space_, deployment);
}

}  // namespace penstock
