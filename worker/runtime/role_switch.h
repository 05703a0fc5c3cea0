#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/metrics/metrics.h"
#include "base/mutex.h"
#include "base/status.h"
#include "worker/runtime/worker_role.h"

namespace penstock {

// Which role a worker has, and its way to another one: it drains like a worker that is to stop, and
// when nothing of the role is open, it closes that gate and opens the other, under the next epoch.
// Pages, prefix cache, tiers and connections stay as they are. Any thread.
class RoleSwitch {
 public:
  struct Parts {
    std::vector<WorkerRole*> roles;  // outlive it
    MetricsRegistry& metrics;
    // The worker begins to drain for a turn, or takes calls again. Any thread; must not block.
    std::function<void()> on_turning;
  };
  // Gets the epoch of the new role. On the switch's thread, or within Turn; must not block.
  using OnTurned = std::function<void(absl::StatusOr<uint32_t> epoch)>;

  // Opens the gate of `first`, which is one of the roles.
  RoleSwitch(Parts parts, v1::WorkerState::Role first);
  ~RoleSwitch();  // Stop()s.

  // Beats of the present role's engine.
  uint64_t beats() const { return present().progress().beats(); }
  bool turning() const { return next_ != nullptr; }
  // The role's part of a WorkerState.
  void Describe(v1::WorkerState* state) const;
  DrainLeft left() const { return present().left(); }

  // Drains for up to `within`, then turns. `done` is called once: at once where the worker has that
  // role. FAILED_PRECONDITION while it turns or stops, INVALID_ARGUMENT for no role,
  // DEADLINE_EXCEEDED when something is still open: then it keeps its role and takes calls again.
  void Turn(v1::WorkerState::Role to, Duration within, OnTurned done) EXCLUDES(mutex_);

  // Gives up a turn that is under way and refuses others. Idempotent.
  void Stop() EXCLUDES(mutex_);

 private:
  struct Metrics;

  WorkerRole& present() const { return *present_.load(); }
  WorkerRole* Of(v1::WorkerState::Role kind) const;
  // One that was asked for.
  struct Order {
    WorkerRole* to = nullptr;
    Duration within{};
    OnTurned done;
  };

  void Run() EXCLUDES(mutex_);
  std::optional<Order> NextOrder() EXCLUDES(mutex_);  // waits; nothing: Stop
  absl::StatusOr<bool> Accept(WorkerRole* to, Duration within, OnTurned& done) EXCLUDES(mutex_);
  absl::StatusOr<uint32_t> DrainAndTurn(WorkerRole& to, Duration within) EXCLUDES(mutex_);
  bool AwaitEmpty(WorkerRole& from, Duration within) EXCLUDES(mutex_);
  bool StoppedWithin(Duration time) EXCLUDES(mutex_);
  void ShowRole() const;

  const Parts parts_;
  const std::unique_ptr<Metrics> metrics_;
  std::atomic<WorkerRole*> present_;
  std::atomic<uint32_t> epoch_{1};
  std::atomic<WorkerRole*> next_{nullptr};  // while it turns
  Mutex mutex_;
  CondVar changed_;
  std::optional<Order> order_ GUARDED_BY(mutex_);  // until the thread takes it
  bool stopped_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace penstock
