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

// The single thread of a wire. It sleeps in epoll and wakes for posted tasks, file descriptors and
// sources. All state of a wire's lanes belongs to this thread.
class WireLoop {
 public:
  using Task = std::function<void()>;

  // Work that no file descriptor announces. Called on the loop's thread.
  class Source {
   public:
    virtual ~Source() = default;
    // Does a bounded amount of work; true when it did any.
    virtual bool Progress() = 0;
    // Called before the loop sleeps. False when there is work, so that the loop must not sleep.
    virtual bool Arm() = 0;
  };

  // RESOURCE_EXHAUSTED when the process has no free file descriptors.
  static absl::StatusOr<std::unique_ptr<WireLoop>> Start();
  ~WireLoop();  // Runs all posted tasks, then ends the thread.

  // Any thread. Tasks run in the order of posting. Callers bound their number.
  void Post(Task task) EXCLUDES(mutex_);
  // Runs `task` on the loop's thread and waits for it. Must not be called on the loop's thread.
  void Run(Task task) EXCLUDES(mutex_);
  bool OnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // The methods below are for the loop's thread only.
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
  // Handlers are found by ids that are never reused, so an event of a closed descriptor finds no
  // handler even if the kernel has reused the descriptor's number.
  std::unordered_map<int, uint64_t> ids_;
  std::unordered_map<uint64_t, std::shared_ptr<Handler>> handlers_;
  uint64_t next_id_ = 1;
  Mutex mutex_;
  std::vector<Task> tasks_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace penstock
