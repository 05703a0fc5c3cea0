#pragma once

#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvstore/names/handoff_key.h"

namespace penstock {

// Messages from other threads to an engine, in order: new jobs, of which at most `jobs_max` wait,
// and the keys of cancelled jobs. Cancels are never refused: a call cancels at most once, and a
// lost cancel would leak blocks. A cancel concerns jobs that came before it only.
template <class Job>
class Mailbox {
 public:
  using Mail =
      std::vector<std::variant<Job, HandoffKey>>;  // a new job, or the key of a cancelled one

  explicit Mailbox(size_t jobs_max) : jobs_max_(jobs_max) {}

  // False when full or closed; `job` is then unchanged.
  [[nodiscard]] bool TryAdd(Job&& job) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_ || jobs_ >= jobs_max_) return false;
    ++jobs_;
    mail_.push_back(std::move(job));
    changed_.NotifyOne();
    return true;
  }

  void Cancel(const HandoffKey& key) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_) return;
    mail_.push_back(key);
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
    while (!closed_ && !woken_ && mail_.empty()) {
      const auto left = deadline - std::chrono::steady_clock::now();
      if (left <= Duration::zero()) break;
      changed_.WaitFor(mutex_, left);
    }
    woken_ = false;
    jobs_ = 0;
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
  size_t jobs_ GUARDED_BY(mutex_) = 0;  // in mail_
  bool woken_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
