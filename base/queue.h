#pragma once

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace penstock {

// A bounded queue between threads; any thread may call it. A full queue refuses TryPush, and the
// caller reports that to its client; no thread blocks in TryPush. After Close no item can be added,
// but the remaining items can be taken.
template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // Returns false if the queue is full or closed; `item` is then unchanged.
  [[nodiscard]] bool TryPush(T&& item) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    changed_.NotifyOne();
    return true;
  }

  // Waits for an item. Returns nullopt if the queue is closed and empty, or if `timeout` has
  // passed.
  std::optional<T> Pop(Duration timeout) EXCLUDES(mutex_) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    MutexLock lock(mutex_);
    while (items_.empty() && !closed_) {
      const auto left = deadline - std::chrono::steady_clock::now();
      if (left <= Duration::zero() || !changed_.WaitFor(mutex_, left)) {
        if (items_.empty()) return std::nullopt;
      }
    }
    if (items_.empty()) return std::nullopt;
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

  // Takes all present items without waiting.
  std::vector<T> PopAll() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::vector<T> taken(std::make_move_iterator(items_.begin()),
                         std::make_move_iterator(items_.end()));
    items_.clear();
    return taken;
  }

  void Close() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }

  bool closed() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return closed_;
  }

  size_t size() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<T> items_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
