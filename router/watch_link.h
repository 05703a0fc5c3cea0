#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "router/block_link.h"
#include "router/worker_table.h"

namespace penstock {

// The channel to one worker, its stream of KV events, and its Watch stream, which feeds the table
// and is opened anew when it ends. Tick and the destructor: one thread.
class WatchLink {
 public:
  // Registers the worker in `table`. `on_news` is called on gRPC's threads after every event.
  WatchLink(std::string endpoint, std::shared_ptr<WorkerTable> table,
            std::function<void()> on_news);
  // Cancels the stream, waits for its end and removes the worker from the table.
  ~WatchLink();
  WatchLink(const WatchLink&) = delete;
  WatchLink& operator=(const WatchLink&) = delete;

  // Opens the stream when there is none and it is time to (100 ms, then up to 1 s after a failure).
  void Tick(TimePoint now);
  // Ends a stream that has gone silent.
  void Drop();

 private:
  class Stream;
  struct State;

  const std::string endpoint_;
  std::shared_ptr<WorkerTable> table_;      // shared with bookings
  std::shared_ptr<State> state_;            // shared with the stream's callbacks
  std::shared_ptr<grpc::Channel> channel_;  // shared with sessions
  std::unique_ptr<BlockLink> blocks_;       // null: the index has no room for the worker
  const std::function<void()> on_news_;
  Duration backoff_;
  TimePoint next_attempt_;
  bool was_open_ = false;
};

}  // namespace penstock
