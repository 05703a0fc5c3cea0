#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace penstock {

// The one thread of a wire. It sleeps in epoll and wakes for posted tasks, for file descriptors and
// for its sources; everything that a wire's lanes own lives on it.
class WireLoop {
 public:
  using Task = std::function<void()>;

  // Work that no file descriptor announces by itself. Called on the loop's thread.
  class Source {
   public:
    virtual ~Source() = default;
    // Does a bounded piece of work; true when there was some.
    virtual bool Progress() = 0;
    // Before the loop sleeps: false when there is work, and the loop must not sleep.
    virtual bool Arm() = 0;
  };

  // RESOURCE_EXHAUSTED when the process is out of file descriptors.
  static absl::StatusOr<std::unique_ptr<WireLoop>> Start();
  ~WireLoop();  // Runs what has been posted, then ends the thread.

  // Any thread. Tasks run in the order of their Posts. The callers bound how many there are.
  void Post(Task task) EXCLUDES(mutex_);
  // Runs `task` on the loop's thread and waits for it. Not from the loop's thread.
  void Run(Task task) EXCLUDES(mutex_);
  bool OnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // The rest is for the loop's thread only.
  using Handler = std::function<void(uint32_t epoll_events)>;
  absl::Status Watch(int fd, uint32_t epoll_events, Handler handler);
  void Rewatch(int fd, uint32_t epoll_events);
  void Unwatch(int fd);
  void AddSource(Source* source) { sources_.push_back(source); }
  void RemoveSource(Source* source) { std::erase(sources_, source); }

 private:
  WireLoop(int epoll_fd, int event_fd);
  void Loop();
  bool RunTasks() EXCLUDES(mutex_);
  bool ProgressSources();
  bool ArmSources();
  void Wait(int timeout_ms);
  void DrainEventFd() const;

  const int epoll_fd_;
  const int event_fd_;
  std::vector<Source*> sources_;
  // A handler is found by an id that is never used twice: an event of a descriptor that was closed,
  // and whose number is already somebody else's, finds nothing.
  std::unordered_map<int, uint64_t> ids_;
  std::unordered_map<uint64_t, std::shared_ptr<Handler>> handlers_;
  uint64_t next_id_ = 1;
  Mutex mutex_;
  std::vector<Task> tasks_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace penstock
