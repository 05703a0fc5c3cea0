#pragma once

#include <memory>

#include "base/mutex.h"
#include "proto/worker.pb.h"
#include "router/fleet/worker_calls.h"

namespace penstock {

// This router's sessions on one decode worker: all on one stream (DecodeWorker.Sessions), which the
// first one opens and which then stays; after it has broken, the next session opens another. The
// listeners of all sessions are called on one thread at a time, so none may wait. Kept by whoever
// may start a session and by sessions until they have ended. Any thread.
class DecodeLink : public std::enable_shared_from_this<DecodeLink> {
 public:
  explicit DecodeLink(std::shared_ptr<grpc::Channel> channel);
  // Sessions have ended. The stream ends soon.
  ~DecodeLink();
  DecodeLink(const DecodeLink&) = delete;
  DecodeLink& operator=(const DecodeLink&) = delete;

  // Opens a session. `args.channel` is not looked at. When the stream breaks, the listener hears
  // UNAVAILABLE or what gRPC makes of it. May be called under the listener's lock.
  std::shared_ptr<WorkerCall> Start(const WorkerCallArgs& args, v1::DecodeRequest request)
      EXCLUDES(mutex_);
  // Ends the stream, and with it whatever is on it, and waits until nobody is called any more. Not
  // on a thread of gRPC's.
  void Close() EXCLUDES(mutex_);

 private:
  class Stream;
  class Call;

  const std::shared_ptr<grpc::Channel> channel_;  // shared with the fleet
  Mutex mutex_;
  std::shared_ptr<Stream> stream_ GUARDED_BY(mutex_);  // the latest; null: none yet
};

}  // namespace penstock
