#include "kvstore/cache/freed_waiters.h"

#include <utility>
#include <vector>

#include "base/thread_name.h"

namespace penstock {

struct FreedWaiters::State {
  struct Waiter {
    uint64_t seen = 0;
    std::function<void()> on_freed;
  };

  // Raise adds to `count` and then reads `waiting`; WhenFreed sets `waiting` and then reads
  // `count`. Both orders are sequentially consistent, so at least one of the two sees the other.
  std::atomic<uint64_t> count{0};
  std::atomic<size_t> waiting{0};
  Mutex mutex;
  CondVar changed;
  std::map<uint64_t, Waiter> waiters GUARDED_BY(mutex);  // the oldest first
  uint64_t next_id GUARDED_BY(mutex) = 0;
  bool stopped GUARDED_BY(mutex) = false;

  // Takes the callbacks that are due, out of the map.
  std::vector<std::function<void()>> TakeDue() REQUIRES(mutex) {
    std::vector<std::function<void()>> due;
    for (auto it = waiters.begin(); it != waiters.end();) {
      if (it->second.seen == count) {
        ++it;
        continue;
      }
      due.push_back(std::move(it->second.on_freed));
      it = waiters.erase(it);
    }
    waiting = waiters.size();
    return due;
  }

  void Remove(uint64_t id) EXCLUDES(mutex) {
    std::function<void()> removed;  // destroyed without the lock
    MutexLock lock(mutex);
    const auto found = waiters.find(id);
    if (found == waiters.end()) return;
    removed = std::move(found->second.on_freed);
    waiters.erase(found);
    waiting = waiters.size();
  }
};

FreedWaiters::Wait::Wait(Wait&& other) noexcept
    : state_(std::exchange(other.state_, nullptr)), id_(other.id_) {}

FreedWaiters::Wait& FreedWaiters::Wait::operator=(Wait&& other) noexcept {
  Wait moved(std::move(other));  // The old registration ends here.
  std::swap(state_, moved.state_);
  std::swap(id_, moved.id_);
  return *this;
}

FreedWaiters::Wait::~Wait() {
  if (state_ != nullptr) state_->Remove(id_);
}

FreedWaiters::FreedWaiters() : state_(std::make_shared<State>()) {}

FreedWaiters::~FreedWaiters() {
  std::map<uint64_t, State::Waiter> dropped;  // destroyed without the lock
  {
    MutexLock lock(state_->mutex);
    state_->stopped = true;
    dropped.swap(state_->waiters);
    state_->changed.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

uint64_t FreedWaiters::count() const { return state_->count; }

void FreedWaiters::Raise() {
  ++state_->count;
  if (state_->waiting == 0) return;
  MutexLock lock(state_->mutex);
  state_->changed.NotifyOne();
}

FreedWaiters::Wait FreedWaiters::WhenFreed(uint64_t seen, std::function<void()> on_freed) {
  MutexLock lock(state_->mutex);
  const uint64_t id = state_->next_id++;
  state_->waiters.emplace(id, State::Waiter{.seen = seen, .on_freed = std::move(on_freed)});
  state_->waiting = state_->waiters.size();
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  if (state_->count != seen) state_->changed.NotifyOne();
  return Wait(state_, id);
}

void FreedWaiters::Run() {
  NameThisThread("freed-waiters");
  while (true) {
    std::vector<std::function<void()>> due;
    {
      MutexLock lock(state_->mutex);
      due = state_->TakeDue();
      while (due.empty() && !state_->stopped) {
        state_->changed.Wait(state_->mutex);
        due = state_->TakeDue();
      }
      if (state_->stopped) return;
    }
    for (const std::function<void()>& on_freed : due) on_freed();
  }
}

}  // namespace penstock
