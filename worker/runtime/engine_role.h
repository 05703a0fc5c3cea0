#pragma once

#include "base/progress.h"
#include "kvstore/handoff/kv_sender.h"
#include "worker/engine/metered_runner.h"
#include "worker/runtime/role_gate.h"
#include "worker/runtime/worker_role.h"
#include "worker/runtime/worker_runtime.h"

namespace penstock {

// The parts that every role has: the gate, the beats of its engine, and the model's runner with the
// metrics of its steps. A role adds its engine and its service.
class EngineRole : public WorkerRole {
 public:
  v1::WorkerState::Role kind() const final { return kind_; }
  RoleGate& gate() final { return gate_; }
  const Progress& progress() const final { return progress_; }

  void AddTotals(v1::WorkerState* state) const override;
  // Sets what open_work() says; a role adds what only it has.
  void DescribeLoad(v1::WorkerState* state) const override;

 protected:
  EngineRole(WorkerRuntime& runtime, v1::WorkerState::Role kind);

  virtual int64_t steps() const = 0;  // of the engine, since the start

  KvSender& sender_;
  Progress progress_;
  MeteredRunner runner_;
  RoleGate gate_;

 private:
  const v1::WorkerState::Role kind_;
};

}  // namespace penstock
