#pragma once

#include <absl/base/thread_annotations.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

// std::mutex with the annotations of clang's thread-safety analysis. (absl::Mutex in Debian's
// prebuilt library causes false ThreadSanitizer reports.)

#if defined(__clang__)
#define PENSTOCK_TSA(x) __attribute__((x))
#else
#define PENSTOCK_TSA(x)
#endif

// GUARDED_BY comes from absl, whose containers define it too.
#define REQUIRES(...) PENSTOCK_TSA(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) PENSTOCK_TSA(locks_excluded(__VA_ARGS__))

namespace penstock {

class PENSTOCK_TSA(capability("mutex")) Mutex {
 public:
  void Lock() PENSTOCK_TSA(acquire_capability()) { mutex_.lock(); }
  void Unlock() PENSTOCK_TSA(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class PENSTOCK_TSA(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) PENSTOCK_TSA(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() PENSTOCK_TSA(release_capability()) { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable. Wait only in a loop that checks the condition again.
class CondVar {
 public:
  void Wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // Returns false if `timeout` has passed.
  bool WaitFor(Mutex& mutex, std::chrono::nanoseconds timeout) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool woken = condition_.wait_for(lock, timeout) == std::cv_status::no_timeout;
    lock.release();
    return woken;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace penstock
