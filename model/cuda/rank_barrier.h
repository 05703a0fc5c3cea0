#pragma once

#include <cstdint>

#include "base/mutex.h"
#include "base/status.h"

namespace penstock {

// Where the threads of all ranks meet. Any of them.
class RankBarrier {
 public:
  explicit RankBarrier(int ranks) : ranks_(ranks) {}
  // Returns when every rank has come: OK when all came with that, else what one of them had.
  absl::Status ArriveAndWait(const absl::Status& status) EXCLUDES(mutex_);

 private:
  const int ranks_;
  Mutex mutex_;
  CondVar changed_;
  int here_ GUARDED_BY(mutex_) = 0;
  uint64_t meetings_ GUARDED_BY(mutex_) = 0;  // that are over
  absl::Status met_ GUARDED_BY(mutex_);       // of this one, so far
  absl::Status last_ GUARDED_BY(mutex_);      // of the last one
};

}  // namespace penstock
