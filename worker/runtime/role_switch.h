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

// Holds a worker's role and changes it: the worker drains as it does before it stops, and when no
// call of the role is open, the switch closes the gate of that role and opens the gate of the other
// one under the next role epoch. Pages, prefix cache, tiers and connections stay as they are. Any
// thread.
class RoleSwitch {
 public:
  struct Parts {
    std::vector<WorkerRole*> roles;  // outlive the switch
    MetricsRegistry& metrics;
    uint64_t incarnation = 0;  // of this process, as in WorkerState
    // Called when turning() has changed. Any thread; must not block.
    std::function<void()> on_turning;
  };
  // Receives the epoch of the new role. Called on the switch's thread or within Turn; must not
  // block.
  using OnTurned = std::function<void(absl::StatusOr<uint32_t> epoch)>;

  // Opens the gate of `first`, which is one of the roles.
  RoleSwitch(Parts parts, v1::WorkerState::Role first);
  ~RoleSwitch();  // Stop()s.

  // Beats of the engine of the present role.
  uint64_t beats() const { return present().progress().beats(); }
  bool turning() const { return next_ != nullptr; }
  // The role's part of a WorkerState.
  void Describe(v1::WorkerState* state) const;
  OpenWork open_work() const { return present().open_work(); }

  // Drains for up to `within`, then changes the role. `done` is called once, and at once if the
  // worker already has the role `to`. FAILED_PRECONDITION while the worker changes its role or
  // stops; INVALID_ARGUMENT for an unknown role; DEADLINE_EXCEEDED when calls are still open after
  // `within`: the worker then keeps its role and takes calls again.
  void Turn(v1::WorkerState::Role to, Duration within, OnTurned done) EXCLUDES(mutex_);

  // Ends a change that is under way with an error and refuses others. Idempotent.
  void Stop() EXCLUDES(mutex_);

 private:
  struct Metrics;

  WorkerRole& present() const { return *present_.load(); }
  WorkerRole* Of(v1::WorkerState::Role kind) const;
  // A requested change.
  struct Order {
    WorkerRole* to = nullptr;
    Duration within{};
    OnTurned done;
  };

  void Run() EXCLUDES(mutex_);
  std::optional<Order> NextOrder() EXCLUDES(mutex_);  // waits; nullopt after Stop
  absl::StatusOr<bool> Accept(WorkerRole* to, Duration within, OnTurned& done) EXCLUDES(mutex_);
  absl::StatusOr<uint32_t> DrainAndTurn(WorkerRole& to, Duration within) EXCLUDES(mutex_);
  bool AwaitEmpty(WorkerRole& from, Duration within) EXCLUDES(mutex_);
  bool StoppedWithin(Duration time) EXCLUDES(mutex_);
  void ShowRole() const;

  const Parts parts_;
  const std::unique_ptr<Metrics> metrics_;
  std::atomic<WorkerRole*> present_;
  std::atomic<uint32_t> epoch_{1};
  std::atomic<WorkerRole*> next_{nullptr};  // while the role changes
  Mutex mutex_;
  CondVar changed_;
  std::optional<Order> order_ GUARDED_BY(mutex_);  // until the thread takes it
  bool stopped_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace penstock
