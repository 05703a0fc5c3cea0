#pragma once

#include <cstdint>

#include "base/mutex.h"
#include "base/status.h"

namespace penstock {

// A reusable barrier for the threads of all ranks, which also combines their statuses.
class RankBarrier {
 public:
  explicit RankBarrier(int ranks) : ranks_(ranks) {}
  // Blocks until every rank has called it. Returns OK if all ranks passed OK, else one rank's
  // error.
  absl::Status ArriveAndWait(const absl::Status& status) EXCLUDES(mutex_);

 private:
  const int ranks_;
  Mutex mutex_;
  CondVar changed_;
  // Ranks that wait in the present round.
  int waiting_ GUARDED_BY(mutex_) = 0;
  uint64_t round_ GUARDED_BY(mutex_) = 0;     // completed rounds
  absl::Status combined_ GUARDED_BY(mutex_);  // status of the present round so far
  absl::Status result_ GUARDED_BY(mutex_);    // status of the last completed round
};

}  // namespace penstock
