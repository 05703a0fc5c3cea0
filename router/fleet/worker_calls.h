#pragma once

#include <memory>

#include "base/clock.h"
#include "base/trace_context.h"
#include "proto/worker.pb.h"
#include "router/placement/placed_pair.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace penstock {

// Receives the messages of an attempt's two calls: the call to the prefill worker, and the session
// on the decode worker, which counts as a call here. Called on gRPC's threads, one at a time for
// each call.
class WorkerCallListener {
 public:
  virtual ~WorkerCallListener() = default;
  virtual void OnPrefillEvent(int attempt, const v1::PrefillEvent& event) = 0;
  virtual void OnDecodeEvent(int attempt, const v1::DecodeEvent& event) = 0;
  virtual void OnDecodeToken(int attempt, const v1::TokenOut& token) = 0;
  virtual void OnCallEnded(int attempt, Side side, const absl::Status& status) = 0;
};

// A call to a worker. It stays alive until it has ended, even when the caller releases it earlier.
// Any thread.
class WorkerCall {
 public:
  virtual ~WorkerCall() = default;
  // Cancels the call. A call to a prefill worker then ends with OnCallEnded. A session on a decode
  // worker ends at once, without a call to its listener.
  virtual void Cancel() = 0;
};

struct WorkerCallArgs {
  TimePoint deadline;                            // max(): none
  std::shared_ptr<grpc::Channel> channel;        // kept alive by the call; DecodeLink uses its own
  std::shared_ptr<WorkerCallListener> listener;  // kept alive by the call
  int attempt = 0;
  TraceContext trace;
};

std::shared_ptr<WorkerCall> StartPrefill(const WorkerCallArgs& args, v1::PrefillRequest request);
// The call counts as the attempt's prefill side.
std::shared_ptr<WorkerCall> StartMove(const WorkerCallArgs& args, v1::MoveRequest request);

}  // namespace penstock
