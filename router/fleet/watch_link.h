#pragma once

#include <grpcpp/security/credentials.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "proto/worker.grpc.pb.h"
#include "router/fleet/decode_link.h"
#include "router/fleet/reopening_stream.h"
#include "router/fleet/worker_table.h"

namespace penstock {

// The channel to one worker, its stream of KV events, and its Watch stream, which feeds the table;
// both opened anew when they end. And the stream of sessions, which these open. Tick, Drop, Close
// and the destructor: one thread.
class WatchLink {
 public:
  // Registers the worker in `table`. `on_news` is called on gRPC's threads after every event.
  WatchLink(std::string endpoint, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
            std::shared_ptr<WorkerTable> table, const std::function<void()>& on_news);
  // Cancels the streams, waits for their end and removes the worker from the table.
  ~WatchLink();
  WatchLink(const WatchLink&) = delete;
  WatchLink& operator=(const WatchLink&) = delete;

  // Opens what is not open and may be.
  void Tick(TimePoint now);
  // Ends a Watch stream that has gone silent.
  void Drop();
  // Ends all streams, sessions too: the router ends.
  void Close();

 private:
  ReopeningStream<v1::WorkerState>::Args StatesArgs(const std::function<void()>& on_news);
  ReopeningStream<v1::BlockEvents>::Args EventsArgs(uint32_t index);

  const std::string endpoint_;
  std::shared_ptr<WorkerTable> table_;            // shared with bookings
  std::shared_ptr<grpc::Channel> channel_;        // shared with sessions
  std::shared_ptr<DecodeLink> sessions_;          // likewise, and with the table
  std::shared_ptr<v1::WorkerStatus::Stub> stub_;  // shared with the streams
  std::optional<ReopeningStream<v1::WorkerState>> states_;
  std::optional<ReopeningStream<v1::BlockEvents>> events_;  // none: the index has no room for it
};

}  // namespace penstock
