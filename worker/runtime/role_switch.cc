#include "worker/runtime/role_switch.h"

#include <utility>

#include "base/check.h"
#include "base/log/log.h"
#include "base/thread_name.h"

namespace penstock {
namespace {

constexpr Duration kSwitchPollInterval = std::chrono::milliseconds(10);
constexpr Duration kSwitchReportInterval = std::chrono::seconds(1);

}  // namespace

struct RoleSwitch::Metrics {
  explicit Metrics(MetricsRegistry& registry)
      : prefill(Role(registry, v1::WorkerState::PREFILL)),
        decode(Role(registry, v1::WorkerState::DECODE)),
        turned(Changes(registry, "turned")),
        kept(Changes(registry, "kept")) {}

  static prometheus::Gauge& Role(MetricsRegistry& registry, v1::WorkerState::Role role) {
    return registry.Gauge("penstock_worker_role", "1 for the role that the worker has now.",
                          {{"role", std::string(RoleName(role))}});
  }
  static prometheus::Counter& Changes(MetricsRegistry& registry, const std::string& outcome) {
    return registry.Counter("penstock_worker_role_changes_total",
                            "Turns of the worker to its other role, and attempts that ended in it "
                            "keeping the one it had.",
                            {{"outcome", outcome}});
  }

  prometheus::Gauge& prefill;
  prometheus::Gauge& decode;
  prometheus::Counter& turned;
  prometheus::Counter& kept;
};

RoleSwitch::RoleSwitch(Parts parts, v1::WorkerState::Role first)
    : parts_(std::move(parts)),
      metrics_(std::make_unique<Metrics>(parts_.metrics)),
      present_(Of(first)) {
  PENSTOCK_CHECK(present_.load() != nullptr);
  present().gate().Open({parts_.incarnation, epoch_});
  ShowRole();
  thread_ = std::thread([this] {
    NameThisThread("role");
    Run();
  });
}

RoleSwitch::~RoleSwitch() { Stop(); }

WorkerRole* RoleSwitch::Of(v1::WorkerState::Role kind) const {
  for (WorkerRole* role : parts_.roles) {
    if (role->kind() == kind) return role;
  }
  return nullptr;
}

void RoleSwitch::Describe(v1::WorkerState* state) const {
  // A reader that sees one role with the epoch of the other only plans a call that the gate
  // refuses.
  const uint32_t epoch = epoch_;
  WorkerRole& role = present();
  state->set_role(role.kind());
  state->set_role_epoch(epoch);
  if (WorkerRole* const next = next_) state->set_turning_to(next->kind());
  for (const WorkerRole* each : parts_.roles) each->AddTotals(state);
  role.DescribeLoad(state);
}

void RoleSwitch::Turn(v1::WorkerState::Role to, Duration within, OnTurned done) {
  const absl::StatusOr<bool> accepted = Accept(Of(to), within, done);
  if (!accepted.ok()) return done(accepted.status());
  if (!*accepted) done(epoch_.load());
}

// False when the worker has that role already.
absl::StatusOr<bool> RoleSwitch::Accept(WorkerRole* to, Duration within, OnTurned& done) {
  if (to == nullptr) return InvalidArgument("role is unspecified; it must be PREFILL or DECODE");
  MutexLock lock(mutex_);
  if (stopped_) return FailedPrecondition("this process is stopping");
  if (turning()) return FailedPrecondition("this worker is changing its role already; retry later");
  if (to == &present()) return false;
  next_ = to;
  order_.emplace(Order{.to = to, .within = within, .done = std::move(done)});
  changed_.NotifyAll();
  return true;
}

void RoleSwitch::Run() {
  while (std::optional<Order> order = NextOrder()) {
    parts_.on_turning();
    absl::StatusOr<uint32_t> epoch = DrainAndTurn(*order->to, order->within);
    (epoch.ok() ? metrics_->turned : metrics_->kept).Increment();
    next_ = nullptr;
    parts_.on_turning();
    order->done(std::move(epoch));
  }
}

std::optional<RoleSwitch::Order> RoleSwitch::NextOrder() {
  MutexLock lock(mutex_);
  while (!order_ && !stopped_) changed_.Wait(mutex_);
  return std::exchange(order_, std::nullopt);
}

absl::StatusOr<uint32_t> RoleSwitch::DrainAndTurn(WorkerRole& to, Duration within) {
  WorkerRole& from = present();
  Log(LogLevel::kInfo, "turning",
      {{"from", RoleName(from.kind())},
       {"to", RoleName(to.kind())},
       {"within_ms", Milliseconds(within)}});
  if (!AwaitEmpty(from, within)) {
    MutexLock lock(mutex_);
    if (stopped_) return Cancelled("this process is stopping");
    const OpenWork left = from.open_work();
    const std::string text = fmt::format(
        "{} calls ({} running, {} handoffs) are still open after {:.1f} s, so the worker keeps the "
        "{} role; allow more time, or add workers that its calls can move to",
        from.gate().calls(), left.running, left.handoffs, Milliseconds(within) / 1e3,
        RoleName(from.kind()));
    LogWarning("role_kept", "{}", text);
    return DeadlineExceeded("{}", text);
  }
  present_ = &to;
  const uint32_t epoch = ++epoch_;
  to.gate().Open({parts_.incarnation, epoch});
  ShowRole();
  Log(LogLevel::kInfo, "turned", {{"to", RoleName(to.kind())}, {"role_epoch", epoch}});
  return epoch;
}

// Calls that arrive during the drain are served: they come from routers that have not seen it yet.
bool RoleSwitch::AwaitEmpty(WorkerRole& from, Duration within) {
  const auto start = std::chrono::steady_clock::now();
  Duration reported{};
  while (!from.gate().CloseIfEmpty()) {
    const Duration waited = std::chrono::steady_clock::now() - start;
    if (waited >= within || StoppedWithin(kSwitchPollInterval)) return false;
    if (waited - reported < kSwitchReportInterval) continue;
    reported = waited;
    const OpenWork left = from.open_work();
    Log(LogLevel::kInfo, "turn_waits",
        {{"calls", from.gate().calls()},
         {"running", left.running},
         {"handoffs", left.handoffs},
         {"moved", left.moved}});
  }
  return true;
}

bool RoleSwitch::StoppedWithin(Duration time) {
  MutexLock lock(mutex_);
  if (!stopped_) changed_.WaitFor(mutex_, time);
  return stopped_;
}

void RoleSwitch::ShowRole() const {
  const bool prefill = present().kind() == v1::WorkerState::PREFILL;
  metrics_->prefill.Set(prefill ? 1 : 0);
  metrics_->decode.Set(prefill ? 0 : 1);
}

void RoleSwitch::Stop() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace penstock
