#pragma once

#include <memory>

#include "base/mutex.h"
#include "proto/worker.pb.h"
#include "router/fleet/worker_calls.h"

namespace penstock {

// This router's sessions on one decode worker, all on one stream (DecodeWorker.Sessions). The first
// session opens the stream, which then stays open; after a failure, the next session opens a new
// one. The listeners of all sessions are called on one thread at a time, so a listener must not
// block. Shared by the fleet, the worker table and the calls of open sessions. Any thread.
class DecodeLink : public std::enable_shared_from_this<DecodeLink> {
 public:
  explicit DecodeLink(std::shared_ptr<grpc::Channel> channel);
  // No session is open. Cancels the stream without waiting for its end.
  ~DecodeLink();
  DecodeLink(const DecodeLink&) = delete;
  DecodeLink& operator=(const DecodeLink&) = delete;

  // Opens a session; `args.channel` is ignored. When the stream fails, the listener gets the
  // stream's status, UNAVAILABLE if the worker ended it with OK. The caller may hold the listener's
  // lock.
  std::shared_ptr<WorkerCall> Start(const WorkerCallArgs& args, v1::DecodeRequest request)
      EXCLUDES(mutex_);
  // Cancels the stream with all sessions on it, and waits until no listener is called any more. Not
  // to be called on a gRPC callback thread.
  void Close() EXCLUDES(mutex_);

 private:
  class Stream;
  class Call;

  const std::shared_ptr<grpc::Channel> channel_;  // shared with the fleet
  Mutex mutex_;
  std::shared_ptr<Stream> stream_ GUARDED_BY(mutex_);  // the latest; nullptr: none yet
};

}  // namespace penstock
