#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace penstock {

// Threads that run pushed work in order. They start with the first Push; the destructor runs all
// pushed work and joins them.
class IoWorker {
 public:
  explicit IoWorker(int threads) : threads_max_(threads) {}
  ~IoWorker() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
      changed_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  // Must be called by one thread only.
  void Push(std::function<void()> work) EXCLUDES(mutex_) {
    while (threads_.size() < static_cast<size_t>(threads_max_)) {
      threads_.emplace_back([this] { Work(); });
    }
    MutexLock lock(mutex_);
    works_.push_back(std::move(work));
    changed_.NotifyOne();
  }

 private:
  void Work() EXCLUDES(mutex_) {
    while (true) {
      std::function<void()> work;
      {
        MutexLock lock(mutex_);
        while (works_.empty() && !closed_) changed_.Wait(mutex_);
        if (works_.empty()) return;
        work = std::move(works_.front());
        works_.pop_front();
      }
      work();
    }
  }

  const int threads_max_;
  std::vector<std::thread> threads_;  // used by the pushing thread
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> works_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
