#pragma once

#include <functional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace penstock {

// Calls a function every `period`, on a thread of its own, until it is destroyed.
class Ticker {
 public:
  Ticker(Duration period, std::function<void()> tick)
      : period_(period), tick_(std::move(tick)), thread_([this] { Run(); }) {}

  ~Ticker() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      wake_.NotifyAll();
    }
    thread_.join();
  }

 private:
  void Run() EXCLUDES(mutex_) {
    while (!Sleep()) tick_();
  }

  // True when it is time to stop.
  bool Sleep() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!stopping_) wake_.WaitFor(mutex_, period_);
    return stopping_;
  }

  const Duration period_;
  const std::function<void()> tick_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace penstock
