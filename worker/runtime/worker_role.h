#pragma once

#include <string_view>

#include "base/progress.h"
#include "proto/names.h"
#include "proto/worker.pb.h"
#include "worker/runtime/drain.h"
#include "worker/runtime/role_gate.h"

namespace grpc {
class Service;
}

namespace penstock {

// A role of a worker: an engine and the gRPC service that feeds it, over the parts of a
// WorkerRuntime. All roles exist from the start of the worker, and exactly one has its gate open;
// the engines of the others are idle.
class WorkerRole {
 public:
  virtual ~WorkerRole() = default;

  virtual v1::WorkerState::Role kind() const = 0;
  // Refuses calls while the gate is closed.
  virtual grpc::Service* service() = 0;
  virtual RoleGate& gate() = 0;
  // The beats of the engine's thread.
  virtual const Progress& progress() const = 0;

  // Adds this role's counts since the start to those in `state`. Any thread, quick.
  virtual void AddTotals(v1::WorkerState* state) const = 0;
  // Sets the present load; called while the worker has this role. Any thread, quick.
  virtual void DescribeLoad(v1::WorkerState* state) const = 0;
  virtual OpenWork open_work() const = 0;

  // Ends open calls with a status that lets the router retry elsewhere, then the engine. Called
  // once, before the process ends.
  virtual void Stop() = 0;
};

}  // namespace penstock
