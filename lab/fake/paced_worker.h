#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"

namespace penstock {

// When each token of each stream left the worker: by the request's seed, then by position. A time
// is 0 until then. Nanoseconds of the steady clock.
class EmissionLog {
 public:
  EmissionLog(size_t streams, size_t tokens) : tokens_(tokens), times_(streams * tokens) {}
  void Note(uint64_t stream, size_t position, TimePoint now) {
    if (const size_t at = stream * tokens_ + position; position < tokens_ && at < times_.size()) {
      times_[at].store(now.time_since_epoch().count(), std::memory_order_release);
    }
  }
  int64_t At(uint64_t stream, size_t position) const {
    return times_[stream * tokens_ + position].load(std::memory_order_acquire);
  }

 private:
  const size_t tokens_;
  std::vector<std::atomic<int64_t>> times_;
};

// A decode worker of the fake model that sends each stream's tokens at an even pace, any number of
// streams on a few threads. Streams start apart, as real batches' do.
class PacedWorker {
 public:
  struct Options {
    std::string worker_id = "paced";
    Duration token_every = std::chrono::milliseconds(50);
    // Tokens leave together, once in so long, as those of a decode step do; 0: each at its time.
    Duration step{0};
    EmissionLog* log = nullptr;  // outlives the worker; may be null
  };
  explicit PacedWorker(const Options& options);
  ~PacedWorker();
  const std::string& endpoint() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
