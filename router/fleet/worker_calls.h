#pragma once

#include <chrono>
#include <memory>

#include "base/trace_context.h"
#include "proto/worker.pb.h"
#include "router/placement/placed_pair.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace penstock {

// What the workers of an attempt say: the prefill worker's call, and the session on the decode
// worker, which counts as a call here. On gRPC's threads, one at a time for each of them.
class WorkerCallListener {
 public:
  virtual ~WorkerCallListener() = default;
  virtual void OnPrefillEvent(int attempt, const v1::PrefillEvent& event) = 0;
  virtual void OnDecodeEvent(int attempt, const v1::DecodeEvent& event) = 0;
  virtual void OnDecodeToken(int attempt, const v1::TokenOut& token) = 0;
  virtual void OnCallEnded(int attempt, Side side, const absl::Status& status) = 0;
};

// A call to a worker. It lives until it has ended, whoever lets go of it.
class WorkerCall {
 public:
  virtual ~WorkerCall() = default;
  // It ends soon; a session on a decode worker has ended then, and nobody is told.
  virtual void Cancel() = 0;
};

struct WorkerCallArgs {
  std::chrono::system_clock::time_point deadline;
  std::shared_ptr<grpc::Channel> channel;  // kept as long as the call; of a DecodeLink, its own
  std::shared_ptr<WorkerCallListener> listener;  // likewise
  int attempt = 0;
  TraceContext trace;
};

std::shared_ptr<WorkerCall> StartPrefill(const WorkerCallArgs& args, v1::PrefillRequest request);
// Counts as the attempt's prefill side.
std::shared_ptr<WorkerCall> StartMove(const WorkerCallArgs& args, v1::MoveRequest request);

}  // namespace penstock
