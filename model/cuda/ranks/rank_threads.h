#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"

namespace penstock {

// Owns one thread for each GPU of a worker. One thread at a time may call it.
class RankThreads {
 public:
  using Work = std::function<absl::Status(int rank)>;

  explicit RankThreads(int ranks);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  int ranks() const { return static_cast<int>(statuses_.size()); }

  // Runs work(rank) once on every thread.
  void Start(Work work) EXCLUDES(mutex_);
  // Waits until all threads have finished. Returns the error of the first rank that has one.
  absl::Status Join() EXCLUDES(mutex_);
  absl::Status Run(Work work) {
    Start(std::move(work));
    return Join();
  }

 private:
  void Serve(int rank) EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  Work work_ GUARDED_BY(mutex_);
  uint64_t turn_ GUARDED_BY(mutex_) = 0;  // number of calls of Start
  int busy_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<absl::Status> statuses_;  // each written by its thread while it is busy
  std::vector<std::thread> threads_;
};

}  // namespace penstock
