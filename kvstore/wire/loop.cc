#include "kvstore/wire/loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <future>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

constexpr uint64_t kWakeId = 0;
// Rounds of Progress before tasks and file descriptors get their turn.
constexpr int kSourceRounds = 16;

epoll_event Event(uint32_t events, uint64_t id) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  return event;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WireLoop>> WireLoop::Start() {
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  const int event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event wake = Event(EPOLLIN, kWakeId);
  if (epoll_fd < 0 || event_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, event_fd, &wake) != 0) {
    const int error = errno;
    if (epoll_fd >= 0) close(epoll_fd);
    if (event_fd >= 0) close(event_fd);
    return ResourceExhausted("wire: no event loop: {}", std::strerror(error));
  }
  return std::unique_ptr<WireLoop>(new WireLoop(epoll_fd, event_fd));
}

WireLoop::WireLoop(int epoll_fd, int event_fd) : epoll_fd_(epoll_fd), event_fd_(event_fd) {
  thread_ = std::thread([this] { Loop(); });
}

WireLoop::~WireLoop() {
  Post([this] {
    MutexLock lock(mutex_);
    stopping_ = true;
  });
  thread_.join();
  close(epoll_fd_);
  close(event_fd_);
}

void WireLoop::Post(Task task) {
  bool first = false;
  {
    MutexLock lock(mutex_);
    first = tasks_.empty();
    tasks_.push_back(std::move(task));
  }
  // Only the thread that finds the list empty wakes the loop, which always takes the whole list.
  if (first) {
    const uint64_t one = 1;
    PENSTOCK_CHECK_EQ(write(event_fd_, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }
}

void WireLoop::Run(Task task) {
  PENSTOCK_CHECK(!OnThread(), "Run on the loop's own thread would deadlock");
  std::promise<void> ran;
  Post([&] {
    task();
    ran.set_value();
  });
  ran.get_future().wait();
}

absl::Status WireLoop::Watch(int fd, uint32_t epoll_events, Handler handler) {
  const uint64_t id = next_id_++;
  epoll_event event = Event(epoll_events, id);
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
    return ResourceExhausted("wire: epoll refuses a descriptor: {}", std::strerror(errno));
  }
  ids_[fd] = id;
  handlers_[id] = std::make_shared<Handler>(std::move(handler));
  return absl::OkStatus();
}

void WireLoop::Rewatch(int fd, uint32_t epoll_events) {
  epoll_event event = Event(epoll_events, ids_.at(fd));
  PENSTOCK_CHECK_EQ(epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event), 0);
}

void WireLoop::Unwatch(int fd) {
  const auto found = ids_.find(fd);
  if (found == ids_.end()) return;
  PENSTOCK_CHECK_EQ(epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr), 0);
  handlers_.erase(found->second);
  ids_.erase(found);
}

void WireLoop::Loop() {
  while (true) {
    const bool worked = RunTasks();
    {
      MutexLock lock(mutex_);
      if (stopping_ && tasks_.empty()) return;
    }
    const bool busy = ProgressSources();
    // File descriptors are polled even when the sources are always busy.
    Wait(worked || busy || !ArmSources() ? 0 : -1);
  }
}

bool WireLoop::RunTasks() {
  std::vector<Task> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(tasks_);
  }
  for (Task& task : tasks) {
    task();
    task = nullptr;
  }
  return !tasks.empty();
}

bool WireLoop::ProgressSources() {
  for (int round = 0; round < kSourceRounds; ++round) {
    bool any = false;
    // By index, because Progress may add or remove sources.
    for (size_t i = 0; i < sources_.size(); ++i) any |= sources_[i]->Progress();
    if (!any) return false;
  }
  return true;
}

bool WireLoop::ArmSources() {
  for (Source* source : sources_) {
    if (!source->Arm()) return false;
  }
  return true;
}

void WireLoop::Wait(int timeout_ms) {
  std::array<epoll_event, 64> events;
  const int count =
      epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), timeout_ms);
  PENSTOCK_CHECK(count >= 0 || errno == EINTR);
  for (int i = 0; i < count; ++i) {
    const uint64_t id = events[i].data.u64;  // a copy: epoll_event is packed, so not aligned
    if (id == kWakeId) {
      DrainEventFd();
      continue;
    }
    const auto found = handlers_.find(id);
    if (found == handlers_.end()) continue;
    // A copy: the handler may unwatch itself.
    const std::shared_ptr<Handler> handler = found->second;
    (*handler)(events[i].events);
  }
}

void WireLoop::DrainEventFd() const {
  uint64_t count = 0;
  PENSTOCK_CHECK(read(event_fd_, &count, sizeof(count)) == sizeof(count) || errno == EAGAIN);
}

}  // namespace penstock
