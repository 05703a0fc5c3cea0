#pragma once

#include <chrono>
#include <memory>

#include "base/trace_context.h"
#include "proto/worker.pb.h"
#include "router/session.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace penstock {

// What the two calls of an attempt say. On gRPC's threads, one at a time for each call.
class WorkerCallListener {
 public:
  virtual ~WorkerCallListener() = default;
  virtual void OnPrefillEvent(int leg, const v1::PrefillEvent& event) = 0;
  virtual void OnDecodeEvent(int leg, const v1::DecodeEvent& event) = 0;
  virtual void OnCallEnded(int leg, Side side, const absl::Status& status) = 0;
};

// A call to a worker. It lives until it has ended, whoever lets go of it.
class WorkerCall {
 public:
  virtual ~WorkerCall() = default;
  virtual void Cancel() = 0;
};

struct WorkerCallArgs {
  std::chrono::system_clock::time_point deadline;
  std::shared_ptr<grpc::Channel> channel;        // kept as long as the call
  std::shared_ptr<WorkerCallListener> listener;  // likewise
  int leg = 0;
  TraceContext trace;
};

std::shared_ptr<WorkerCall> StartPrefill(const WorkerCallArgs& args, v1::PrefillRequest request);
std::shared_ptr<WorkerCall> StartDecode(const WorkerCallArgs& args, v1::DecodeRequest request);
// Counts as the leg's prefill side.
std::shared_ptr<WorkerCall> StartMove(const WorkerCallArgs& args, v1::MoveRequest request);

}  // namespace penstock
