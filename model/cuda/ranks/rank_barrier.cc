#include "model/cuda/ranks/rank_barrier.h"

#include <utility>

namespace penstock {

StepReadiness RankBarrier::ArriveAndWait(const StepReadiness& own) {
  MutexLock lock(mutex_);
  if (combined_.prepared.ok()) combined_.prepared = own.prepared;
  combined_.memory_moved |= own.memory_moved;
  if (++waiting_ == ranks_) {
    result_ = std::exchange(combined_, StepReadiness());
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
