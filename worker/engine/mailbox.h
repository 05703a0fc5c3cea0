#pragma once

#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvstore/names/handoff_key.h"

namespace penstock {

// Messages from other threads to an engine: new jobs, of which at most `jobs_max` wait, and the
// keys of cancelled jobs. Cancels are never refused: a call cancels at most once, and a lost cancel
// would leak blocks.
template <class Job>
class Mailbox {
 public:
  struct Mail {
    std::vector<Job> jobs;
    std::vector<HandoffKey> cancels;  // also of jobs in `jobs`
  };

  explicit Mailbox(size_t jobs_max) : jobs_max_(jobs_max) {}

  // False when full or closed; `job` is then unchanged.
  [[nodiscard]] bool TryAdd(Job&& job) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_ || mail_.jobs.size() >= jobs_max_) return false;
    mail_.jobs.push_back(std::move(job));
    changed_.NotifyOne();
    return true;
  }

  void Cancel(const HandoffKey& key) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_) return;
    mail_.cancels.push_back(key);
    changed_.NotifyOne();
  }

  // Makes the next Take return at once, because something other than mail lets the engine go on.
  void Wake() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    woken_ = true;
    changed_.NotifyOne();
  }

  // Takes all mail; if there is none, waits for up to `patience`.
  Mail Take(Duration patience) EXCLUDES(mutex_) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    MutexLock lock(mutex_);
    while (!closed_ && !woken_ && mail_.jobs.empty() && mail_.cancels.empty()) {
      const auto left = deadline - std::chrono::steady_clock::now();
      if (left <= Duration::zero()) break;
      changed_.WaitFor(mutex_, left);
    }
    woken_ = false;
    return std::exchange(mail_, {});
  }

  // Refuses new mail. Mail that is inside can still be taken.
  void Close() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }

  bool closed() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return closed_;
  }

 private:
  const size_t jobs_max_;
  mutable Mutex mutex_;
  CondVar changed_;
  Mail mail_ GUARDED_BY(mutex_);
  bool woken_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
