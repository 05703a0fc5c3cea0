#include "model/cuda/rank_barrier.h"

#include <utility>

namespace penstock {

absl::Status RankBarrier::ArriveAndWait(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (met_.ok()) met_ = status;
  if (++here_ == ranks_) {
    last_ = std::exchange(met_, absl::OkStatus());
    here_ = 0;
    ++meetings_;
    changed_.NotifyAll();
    return last_;
  }
  // A rank can arrive at the next round only after it has left this one, so last_ stays valid here.
  for (const uint64_t meeting = meetings_; meeting == meetings_;) changed_.Wait(mutex_);
  return last_;
}

}  // namespace penstock
