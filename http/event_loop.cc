#include "http/event_loop.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace penstock {
namespace {

constexpr Duration kTickEvery = std::chrono::milliseconds(100);
constexpr size_t kScratchBytes = 64 << 10;

uint64_t KeyOf(int fd, uint32_t generation) {
  return static_cast<uint64_t>(generation) << 32 | static_cast<uint32_t>(fd);
}

}  // namespace

absl::StatusOr<std::shared_ptr<EventLoop>> EventLoop::Create() {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  const int wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (epoll < 0 || wake < 0) {
    const int error = errno;
    if (epoll >= 0) close(epoll);
    if (wake >= 0) close(wake);
    return ResourceExhausted("cannot create an event loop: {}", strerror(error));
  }
  epoll_event event{.events = EPOLLIN, .data = {.u64 = KeyOf(wake, 0)}};
  PENSTOCK_CHECK_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, wake, &event), 0);
  return std::shared_ptr<EventLoop>(new EventLoop(epoll, wake));
}

EventLoop::EventLoop(int epoll, int wake)
    : epoll_(epoll), wake_(wake), scratch_(kScratchBytes), now_(std::chrono::steady_clock::now()) {}

EventLoop::~EventLoop() {
  Stop();
  close(wake_);
  close(epoll_);
}

void EventLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void EventLoop::Stop() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  const std::map<int, Watched> watched = std::move(watched_);  // destructors call Remove
  watched_.clear();
  std::vector<std::function<void()>> dropped;
  MutexLock lock(mutex_);
  dropped.swap(tasks_);
}

bool EventLoop::Post(std::function<void()> task) {
  bool first = false;
  {
    MutexLock lock(mutex_);
    if (stopped_) return false;
    first = tasks_.empty();
    tasks_.push_back(std::move(task));
  }
  if (!first) return true;  // the thread was woken already
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
  return true;
}

absl::Status EventLoop::Add(int fd, uint32_t events, std::shared_ptr<Watcher> watcher) {
  const uint32_t generation = next_generation_++;
  epoll_event event{.events = events, .data = {.u64 = KeyOf(fd, generation)}};
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    return ResourceExhausted("cannot watch a connection: {}", strerror(errno));
  }
  watched_[fd] = {std::move(watcher), generation};
  return absl::OkStatus();
}

void EventLoop::Modify(int fd, uint32_t events) {
  epoll_event event{.events = events, .data = {.u64 = KeyOf(fd, watched_.at(fd).generation)}};
  PENSTOCK_CHECK_EQ(epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event), 0);
}

void EventLoop::Remove(int fd) {
  const auto found = watched_.find(fd);
  if (found == watched_.end()) return;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  watched_.erase(found);
}

void EventLoop::Run() {
  std::array<epoll_event, 256> events;
  next_tick_ = std::chrono::steady_clock::now() + kTickEvery;
  while (true) {
    {
      MutexLock lock(mutex_);
      if (stopped_) return;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        next_tick_ - std::chrono::steady_clock::now());
    const int timeout_ms = static_cast<int>(std::max<int64_t>(left.count() + 1, 0));
    const int count = epoll_wait(epoll_, events.data(), events.size(), timeout_ms);
    now_ = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) Dispatch(events[i].data.u64, events[i].events);
    RunTasks();
    if (now_ >= next_tick_) Tick();
  }
}

void EventLoop::Dispatch(uint64_t key, uint32_t events) {
  const int fd = static_cast<int>(key & 0xffffffff);
  if (fd == wake_) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t taken = read(wake_, &count, sizeof(count));
    return;
  }
  const auto found = watched_.find(fd);
  // The event belongs to a descriptor that an earlier event of the same batch has closed.
  if (found == watched_.end() || found->second.generation != key >> 32) return;
  // Keeps it alive: it may remove itself.
  const std::shared_ptr<Watcher> watcher = found->second.watcher;
  watcher->OnReady(events);
}

void EventLoop::RunTasks() {
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(tasks_);
  }
  for (const std::function<void()>& task : tasks) task();
}

void EventLoop::Tick() {
  next_tick_ = now_ + kTickEvery;
  std::vector<std::shared_ptr<Watcher>> all;
  all.reserve(watched_.size());
  for (const auto& [fd, watched] : watched_) all.push_back(watched.watcher);
  for (const auto& watcher : all) watcher->OnTick(now_);
}

}  // namespace penstock
