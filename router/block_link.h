#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "router/worker_table.h"

namespace penstock {

// A worker's stream of KV events, which feeds the table's PrefixView and is opened anew when it
// ends. Tick and the destructor: one thread.
class BlockLink {
 public:
  // `index`: the worker's number there.
  BlockLink(std::string endpoint, uint32_t index, std::shared_ptr<WorkerTable> table,
            std::shared_ptr<grpc::Channel> channel);
  // Cancels the stream and waits for its end.
  ~BlockLink();
  BlockLink(const BlockLink&) = delete;
  BlockLink& operator=(const BlockLink&) = delete;

  // Opens the stream when there is none and it is time to: a tenth of a second after one that had
  // events, up to 10 s after one that had none.
  void Tick(TimePoint now);

 private:
  class Stream;
  struct State;

  const std::string endpoint_;
  const uint32_t index_;
  std::shared_ptr<WorkerTable> table_;      // shared with bookings
  std::shared_ptr<grpc::Channel> channel_;  // shared with the watch and with sessions
  std::shared_ptr<State> state_;            // shared with the stream's callbacks
  Duration backoff_;
  TimePoint next_attempt_;
  bool was_open_ = false;
};

}  // namespace penstock
