#include "router/fleet/role_keeper.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "base/log/log.h"
#include "base/rpc/rpc_server.h"
#include "proto/admin.grpc.pb.h"
#include "proto/names.h"

namespace penstock {
namespace {

constexpr auto kDrainWithin = std::chrono::seconds(60);

}  // namespace

struct RoleKeeper::Metrics {
  explicit Metrics(MetricsRegistry& registry)
      : prefill_load(Load(registry, "prefill")),
        decode_load(Load(registry, "decode")),
        to_prefill(Advice(registry, "prefill")),
        to_decode(Advice(registry, "decode")),
        turned(Turns(registry, "turned")),
        failed(Turns(registry, "failed")) {}

  static prometheus::Gauge& Load(MetricsRegistry& registry, const std::string& role) {
    return registry.Gauge("penstock_router_role_load",
                          "Load of a role relative to its latency targets (1 = at SLO capacity).",
                          {{"role", role}});
  }
  static prometheus::Gauge& Advice(MetricsRegistry& registry, const std::string& role) {
    return registry.Gauge("penstock_router_role_advice",
                          "1 while a worker of the other role should change to this role.",
                          {{"to", role}});
  }
  static prometheus::Counter& Turns(MetricsRegistry& registry, const std::string& outcome) {
    return registry.Counter("penstock_router_role_turns_total",
                            "Role changes that this router started (--role_advice=act).",
                            {{"outcome", outcome}});
  }

  prometheus::Gauge& prefill_load;
  prometheus::Gauge& decode_load;
  prometheus::Gauge& to_prefill;
  prometheus::Gauge& to_decode;
  prometheus::Counter& turned;
  prometheus::Counter& failed;
};

// One call of WorkerAdmin.SetRole.
struct RoleKeeper::RoleChange {
  grpc::ClientContext context;
  std::unique_ptr<v1::WorkerAdmin::Stub> stub;
  v1::SetRoleRequest request;
  v1::RoleSet set;
};

RoleKeeper::RoleKeeper(WorkerTable& table, MetricsRegistry& metrics, Options options)
    : table_(table),
      options_(options),
      metrics_(std::make_unique<Metrics>(metrics)),
      advisor_(options.policy) {
  MutexLock lock(mutex_);
  latest_.set_mode(options_.act ? "act" : "propose");
}

RoleKeeper::~RoleKeeper() {
  MutexLock lock(mutex_);
  if (role_change_ != nullptr) role_change_->context.TryCancel();
  while (role_change_ != nullptr) ended_.Wait(mutex_);
}

void RoleKeeper::Observe(TimePoint now) {
  const std::optional<RoleProposal>& proposal =
      advisor_.Observe(table_.Roles(options_.targets), now);
  Publish(proposal);
  if (!proposal || !options_.act || now < next_action_at_) return;
  next_action_at_ = now + options_.policy.cooldown;  // also when the change fails
  ChangeRole(*proposal);
}

void RoleKeeper::Publish(const std::optional<RoleProposal>& proposal) {
  metrics_->prefill_load.Set(advisor_.prefill_load());
  metrics_->decode_load.Set(advisor_.decode_load());
  const v1::WorkerState::Role to = proposal ? proposal->to : v1::WorkerState::ROLE_UNSPECIFIED;
  metrics_->to_prefill.Set(to == v1::WorkerState::PREFILL ? 1 : 0);
  metrics_->to_decode.Set(to == v1::WorkerState::DECODE ? 1 : 0);
  v1::RoleAdvice advice;
  advice.set_mode(options_.act ? "act" : "propose");
  advice.set_prefill_load(advisor_.prefill_load());
  advice.set_decode_load(advisor_.decode_load());
  if (proposal) {
    advice.set_worker(proposal->worker.worker_id);
    advice.set_from(proposal->from);
    advice.set_to(proposal->to);
    advice.set_gain(proposal->gain);
    advice.set_why(proposal->why);
  }
  MutexLock lock(mutex_);
  const bool changed = latest_.to() != advice.to();
  latest_.Swap(&advice);
  if (!changed) return;
  if (proposal) {
    Log(LogLevel::kInfo, "role_advised",
        {{"worker", proposal->worker.worker_id},
         {"from", RoleName(proposal->from)},
         {"to", RoleName(proposal->to)},
         {"message", proposal->why}});
  } else {
    LogInfo("roles_balanced", "no role is short of workers");
  }
}

v1::RoleAdvice RoleKeeper::Latest() const {
  MutexLock lock(mutex_);
  return latest_;
}

void RoleKeeper::Turn(v1::WorkerState::Role to, bool home) {
  const RoleSituation situation = table_.Roles(options_.targets);
  const RolePool& from = to == v1::WorkerState::PREFILL ? situation.decode : situation.prefill;
  const RoleCandidate* best = nullptr;
  for (const RoleCandidate& worker : from.workers) {
    if (worker.visitor != home) continue;
    if (best == nullptr || worker.drain_cost < best->drain_cost) best = &worker;
  }
  if (best == nullptr || from.size() < 2) return;
  ChangeRole(
      {.worker = *best,
       .from = to == v1::WorkerState::PREFILL ? v1::WorkerState::DECODE : v1::WorkerState::PREFILL,
       .to = to});
}

void RoleKeeper::ChangeRole(const RoleProposal& proposal) {
  const auto channel = table_.ChannelTo(proposal.worker.endpoint);
  if (!channel.ok()) return;  // It is no longer listed.
  MutexLock lock(mutex_);
  if (role_change_ != nullptr) return;
  role_change_ = std::make_unique<RoleChange>();
  RoleChange& turn = *role_change_;
  turn.stub = v1::WorkerAdmin::NewStub(*channel);
  turn.request.set_role(proposal.to);
  turn.request.set_within_ms(
      static_cast<uint32_t>(std::chrono::milliseconds(kDrainWithin).count()));
  turn.context.set_deadline(std::chrono::system_clock::now() + 2 * kDrainWithin);
  turn.stub->async()->SetRole(&turn.context, &turn.request, &turn.set,
                              [this, proposal](const grpc::Status& status) {
                                OnRoleChanged(proposal, FromGrpcStatus(status));
                              });
}

void RoleKeeper::OnRoleChanged(const RoleProposal& proposal, const absl::Status& status) {
  if (status.ok()) {
    Log(LogLevel::kInfo, "worker_role_changed",
        {{"worker", proposal.worker.worker_id}, {"to", RoleName(proposal.to)}});
  } else {
    Log(LogLevel::kWarning, "worker_role_change_failed",
        {{"worker", proposal.worker.worker_id},
         {"to", RoleName(proposal.to)},
         {"error", Message(status)}});
  }
  MutexLock lock(mutex_);
  role_change_.reset();
  // Who sees the count may ask for the next change.
  (status.ok() ? metrics_->turned : metrics_->failed).Increment();
  ended_.NotifyAll();
}

}  // namespace penstock
