#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace penstock {

// One thread that waits for events of many file descriptors (epoll). Functions are for the loop's
// own thread unless marked otherwise. Shared by its connections.
class EventLoop {
 public:
  class Watcher {
   public:
    virtual ~Watcher() = default;
    virtual void OnReady(uint32_t events) = 0;  // EPOLLIN etc.
    virtual void OnTick(TimePoint now) = 0;     // called a few times a second
  };

  static absl::StatusOr<std::shared_ptr<EventLoop>> Create();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  void Start();
  // Ends the thread; tasks that have not run are dropped. Any thread but the loop's own.
  void Stop() EXCLUDES(mutex_);
  // Runs `task` soon on the loop's thread. Returns false after Stop. Any thread.
  bool Post(std::function<void()> task) EXCLUDES(mutex_);

  // Watches `fd` for `events` and keeps `watcher` until Remove. May be called before Start.
  absl::Status Add(int fd, uint32_t events, std::shared_ptr<Watcher> watcher);
  void Modify(int fd, uint32_t events);
  void Remove(int fd);
  // A buffer for the duration of one call of a watcher.
  std::span<char> scratch() { return scratch_; }
  size_t watchers() const { return watched_.size(); }
  TimePoint now() const { return now_; }

 private:
  struct Watched {
    std::shared_ptr<Watcher> watcher;
    uint32_t generation = 0;  // distinguishes a reused descriptor number from its previous use
  };

  EventLoop(int epoll, int wake);
  void Run();
  void Dispatch(uint64_t key, uint32_t events);
  void RunTasks() EXCLUDES(mutex_);
  void Tick();

  const int epoll_;
  const int wake_;
  std::map<int, Watched> watched_;
  uint32_t next_generation_ = 1;
  std::vector<char> scratch_;
  TimePoint now_;
  TimePoint next_tick_;
  std::thread thread_;

  Mutex mutex_;
  std::vector<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  bool stopped_ GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
