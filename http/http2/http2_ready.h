#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace penstock {

// The streams of a connection that have something new for it, each named once however often it is
// woken, and the connection woken once for all of them. Also counts the requests that anybody still
// holds. Any thread.
class Http2Ready {
 public:
  class Mark;
  explicit Http2Ready(std::function<void()> wake) : wake_(std::move(wake)) {}

  // The streams since the last call.
  std::vector<int32_t> Take() EXCLUDES(mutex_);
  size_t marks() const { return marks_.load(); }
  // The connection is gone: who still wakes it wakes nobody, and is not kept.
  void Close() EXCLUDES(mutex_);

 private:
  void Add(std::shared_ptr<Mark> mark) EXCLUDES(mutex_);

  const std::function<void()> wake_;
  std::atomic<size_t> marks_{0};
  Mutex mutex_;
  std::vector<std::shared_ptr<Mark>> ready_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

// One stream's; lives as long as anybody who may wake it.
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
    if (ready_.size() > 1) return;  // it was woken already
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
    // Before anybody looks: what comes from now on is news again.
    mark->set_ = false;
    streams.push_back(mark->stream_);
  }
  return streams;
}

}  // namespace penstock
