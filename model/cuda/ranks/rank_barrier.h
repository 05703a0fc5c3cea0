#pragma once

#include <cstdint>

#include "base/mutex.h"
#include "base/status.h"
#include "model/cuda/product_exchange.h"

namespace penstock {

// A reusable barrier for the threads of all ranks, which also combines what they say.
class RankBarrier {
 public:
  explicit RankBarrier(int ranks) : ranks_(ranks) {}
  // Blocks until every rank has called it. Returns what all have said together.
  StepReadiness ArriveAndWait(const StepReadiness& own) EXCLUDES(mutex_);

 private:
  const int ranks_;
  Mutex mutex_;
  CondVar changed_;
  // Ranks that wait in the present round.
  int waiting_ GUARDED_BY(mutex_) = 0;
  uint64_t round_ GUARDED_BY(mutex_) = 0;      // completed rounds
  StepReadiness combined_ GUARDED_BY(mutex_);  // of the present round so far
  StepReadiness result_ GUARDED_BY(mutex_);    // of the last completed round
};

}  // namespace penstock
