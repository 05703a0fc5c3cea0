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

// The connection to one worker: its channel, the Watch stream of its state, the stream of its cache
// events, which both feed the worker table and are reopened when they end, and the DecodeLink for
// sessions. Tick, Drop, Close and the destructor are for one thread.
class WatchLink {
 public:
  // Registers the worker in `table`. `on_change` is called on gRPC's threads after every change of
  // the worker's state.
  WatchLink(std::string endpoint, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
            std::shared_ptr<WorkerTable> table, const std::function<void()>& on_change);
  // Cancels the streams, waits for their end and removes the worker from the table.
  ~WatchLink();
  WatchLink(const WatchLink&) = delete;
  WatchLink& operator=(const WatchLink&) = delete;

  // Opens the streams that are closed, subject to their backoff.
  void Tick(TimePoint now);
  // Cancels a Watch stream that is silent.
  void Drop();
  // Cancels all streams, sessions too: the router is stopping.
  void Close();

 private:
  ReopeningStream<v1::WorkerState>::Args StatesArgs(const std::function<void()>& on_change);
  ReopeningStream<v1::BlockEvents>::Args EventsArgs(uint32_t index);

  const std::string endpoint_;
  std::shared_ptr<WorkerTable> table_;            // shared with reservations
  std::shared_ptr<grpc::Channel> channel_;        // shared with sessions
  std::shared_ptr<DecodeLink> sessions_;          // shared with sessions and the table
  std::shared_ptr<v1::WorkerStatus::Stub> stub_;  // shared with the streams
  std::optional<ReopeningStream<v1::WorkerState>> states_;
  std::optional<ReopeningStream<v1::BlockEvents>> events_;  // nullopt: the index is full
};

}  // namespace penstock
