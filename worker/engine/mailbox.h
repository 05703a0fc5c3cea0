#pragma once

#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvstore/names/handoff_key.h"

namespace penstock {

// What other threads tell an engine: new jobs, at most `jobs_max` untaken ones, and the keys of
// those that nobody wants any more. Cancels are not refused: there are no more of them than calls,
// and a lost one would strand blocks.
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

  // The next Take returns at once: something else than mail may let the engine go on.
  void Wake() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    woken_ = true;
    changed_.NotifyOne();
  }

  // What there is; when there is nothing, waits for up to `patience`.
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

  // Nothing enters any more; what is inside can still be taken.
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
