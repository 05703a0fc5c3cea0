#include "model/cuda/rank_barrier.h"

#include <utility>

namespace penstock {

absl::Status RankBarrier::ArriveAndWait(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (combined_.ok()) combined_ = status;
  if (++waiting_ == ranks_) {
    result_ = std::exchange(combined_, absl::OkStatus());
    waiting_ = 0;
    ++round_;
    changed_.NotifyAll();
    return result_;
  }
  // A rank can arrive at the next round only after it has left this one, so result_ stays valid
  // here.
  for (const uint64_t round = round_; round == round_;) changed_.Wait(mutex_);
  return result_;
}

}  // namespace penstock
