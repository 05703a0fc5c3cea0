#include "model/cuda/ranks/rank_threads.h"

#include <utility>

#include "base/check.h"

namespace penstock {

RankThreads::RankThreads(int ranks) : statuses_(static_cast<size_t>(ranks)) {
  for (int rank = 0; rank < ranks; ++rank) threads_.emplace_back([this, rank] { Serve(rank); });
}

RankThreads::~RankThreads() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void RankThreads::Start(Work work) {
  MutexLock lock(mutex_);
  PENSTOCK_CHECK_EQ(busy_, 0);
  work_ = std::move(work);
  busy_ = ranks();
  ++turn_;
  changed_.NotifyAll();
}

absl::Status RankThreads::Join() {
  MutexLock lock(mutex_);
  while (busy_ > 0) changed_.Wait(mutex_);
  for (const absl::Status& status : statuses_) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

void RankThreads::Serve(int rank) {
  for (uint64_t done = 0;; ++done) {
    Work work;
    {
      MutexLock lock(mutex_);
      while (turn_ == done && !stopping_) changed_.Wait(mutex_);
      if (turn_ == done) return;
      work = work_;
    }
    statuses_[static_cast<size_t>(rank)] = work(rank);
    MutexLock lock(mutex_);
    if (--busy_ == 0) changed_.NotifyAll();
  }
}

}  // namespace penstock
