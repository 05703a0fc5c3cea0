#pragma once

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace penstock {

// A bounded queue between threads. At the bound TryPush refuses and the caller says so to whoever
// asked; nothing waits to push. After Close nothing enters, and what is inside can still be taken.
template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False when full or closed; `item` is then unchanged.
  [[nodiscard]] bool TryPush(T&& item) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    changed_.NotifyOne();
    return true;
  }

  // Waits for an item; nullopt once the queue is closed and empty, or when `timeout` has passed.
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

  // Everything that is there now, without waiting.
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
