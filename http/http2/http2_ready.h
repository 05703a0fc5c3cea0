#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace penstock {

// The set of a connection's streams that have new output. A stream is listed once for any number of
// wake-ups, and the connection is woken once for all streams. It also counts the requests that
// handlers still hold. Any thread.
class Http2Ready {
 public:
  class Mark;
  explicit Http2Ready(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Returns the streams that were woken since the last call.
  std::vector<int32_t> Take() EXCLUDES(mutex_);
  size_t marks() const { return marks_.load(); }
  // The connection is closed: later wake-ups are ignored, and their streams are released.
  void Close() EXCLUDES(mutex_);

 private:
  void Add(std::shared_ptr<Mark> mark) EXCLUDES(mutex_);

  const std::function<void()> wake_;
  std::atomic<size_t> marks_{0};
  Mutex mutex_;
  std::vector<std::shared_ptr<Mark>> ready_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

// The mark of one stream. It exists as long as a handler may wake the stream.
class Http2Ready::Mark : public std::enable_shared_from_this<Mark> {
 public:
  Mark(std::shared_ptr<Http2Ready> all, int32_t stream) : all_(std::move(all)), stream_(stream) {
    ++all_->marks_;
  }
  ~Mark() { --all_->marks_; }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  void Wake() {
    if (!set_.exchange(true)) all_->Add(shared_from_this());
  }

 private:
  friend class Http2Ready;

  const std::shared_ptr<Http2Ready> all_;
  const int32_t stream_;
  std::atomic<bool> set_{false};
};

inline void Http2Ready::Add(std::shared_ptr<Mark> mark) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    ready_.push_back(std::move(mark));
    if (ready_.size() > 1) return;  // the connection was woken already
  }
  wake_();
}

inline void Http2Ready::Close() {
  std::vector<std::shared_ptr<Mark>> dropped;
  MutexLock lock(mutex_);
  closed_ = true;
  dropped.swap(ready_);
}

inline std::vector<int32_t> Http2Ready::Take() {
  std::vector<std::shared_ptr<Mark>> taken;
  {
    MutexLock lock(mutex_);
    taken.swap(ready_);
  }
  std::vector<int32_t> streams;
  streams.reserve(taken.size());
  for (const auto& mark : taken) {
    // Cleared before the stream is examined, so that a later wake-up is not lost.
    mark->set_ = false;
    streams.push_back(mark->stream_);
  }
  return streams;
}

}  // namespace penstock
