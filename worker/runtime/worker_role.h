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

// One of the things that a worker can be: an engine and the service that feeds it, over parts that
// outlive every role. All roles of a worker are there from its start, and one of them has its gate
// open; the engines of the others wait for work that does not come.
class WorkerRole {
 public:
  virtual ~WorkerRole() = default;

  virtual v1::WorkerState::Role kind() const = 0;
  // Refuses what comes while the gate is closed.
  virtual grpc::Service* service() = 0;
  virtual RoleGate& gate() = 0;
  // Of the engine's thread.
  virtual const Progress& progress() const = 0;

  // What counts from the start, added to what other roles have counted. Any thread, quick.
  virtual void AddTotals(v1::WorkerState* state) const = 0;
  // What it is doing now, while the worker has this role. Any thread, quick.
  virtual void DescribeLoad(v1::WorkerState* state) const = 0;
  virtual DrainLeft left() const = 0;

  // Ends what is open, with a status that lets the router go on, and the engine. Once; the process
  // is to end.
  virtual void Stop() = 0;
};

}  // namespace penstock
