#include "lab/world/machine/scheduler.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace penstock::world {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr size_t kGuardBytes = 4096;

Scheduler* g_scheduler = nullptr;

// Memory is used only as far as the fiber's calls are deep.
std::byte* MapStack() {
  void* const memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  PENSTOCK_CHECK(memory != MAP_FAILED);
  PENSTOCK_CHECK_EQ(mprotect(memory, kGuardBytes, PROT_NONE), 0);
  return static_cast<std::byte*>(memory);
}

}  // namespace

Scheduler::Scheduler(uint64_t seed) : random_(seed) {
  PENSTOCK_CHECK(g_scheduler == nullptr);
  g_scheduler = this;
}

Scheduler::~Scheduler() {
  g_scheduler = nullptr;
  for (const auto& fiber : fibers_) munmap(fiber->stack, kStackBytes);
}

Scheduler* Scheduler::current() { return g_scheduler; }

// ---------------------------------------------------------------- events

// An event keeps its number when it is put off, so that events of one process keep their order.
std::unique_ptr<Scheduler::Event> Scheduler::NewEvent() {
  auto event = std::make_unique<Event>();
  event->number = next_event_++;
  return event;
}

void Scheduler::Push(std::unique_ptr<Event> event) {
  events_.push_back(std::move(event));
  std::push_heap(events_.begin(), events_.end(), Later());
}

std::unique_ptr<Scheduler::Event> Scheduler::PopEvent() {
  std::pop_heap(events_.begin(), events_.end(), Later());
  std::unique_ptr<Event> event = std::move(events_.back());
  events_.pop_back();
  return event;
}

void Scheduler::After(Duration delay, Process* process, std::function<void()> event) {
  auto made = NewEvent();
  made->at = now_ + std::max(delay, Duration::zero());
  made->process = process;
  made->run = std::move(event);
  Push(std::move(made));
}

// ---------------------------------------------------------------- fibers

Fiber* Scheduler::NewFiber() {
  auto fiber = std::make_unique<Fiber>();
  fiber->stack = MapStack();
  PENSTOCK_CHECK_EQ(getcontext(&fiber->context), 0);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, &Scheduler::Enter, 0);
  fibers_.push_back(std::move(fiber));
  return fibers_.back().get();
}

// The first frame of every fiber. A pooled one waits for its next event at the end of each.
void Scheduler::Enter() {
  while (true) {
    Scheduler& self = *g_scheduler;
    Fiber& fiber = *self.running_;
    std::exchange(fiber.body, nullptr)();
    if (fiber.pooled) {
      self.idle_.push_back(&fiber);
    } else {
      fiber.finished = true;
      self.WakeAll(&fiber);
    }
    self.Block();
  }
}

Fiber* Scheduler::StartThread(Process* process, std::function<void()> body) {
  Fiber* const fiber = NewFiber();
  fiber->process = process;
  fiber->body = std::move(body);
  ready_.push_back(fiber);
  return fiber;
}

void Scheduler::Resume(Fiber* fiber) {
  running_ = fiber;
  PENSTOCK_CHECK_EQ(swapcontext(&main_, &fiber->context), 0);
  running_ = nullptr;
}

void Scheduler::Block() { PENSTOCK_CHECK_EQ(swapcontext(&running_->context, &main_), 0); }

void Scheduler::Unblock(Fiber* fiber) {
  ++fiber->waits;
  fiber->waits_on = nullptr;
  ready_.push_back(fiber);
}

void Scheduler::WaitOn(const void* object) {
  running_->waits_on = object;
  waiters_[object].push_back(running_);
  Block();
}

bool Scheduler::WaitOn(const void* object, TimePoint until) {
  if (until <= now_) until = now_;  // Others run all the same.
  auto event = NewEvent();
  event->at = until;
  event->process = running_->process;
  event->fiber = running_;
  event->waits = running_->waits;
  Push(std::move(event));
  running_->timed_out = false;
  WaitOn(object);
  return !running_->timed_out;
}

void Scheduler::Sleep(Duration time) { WaitOn(nullptr, now_ + time); }

void Scheduler::Join(Fiber* fiber) {
  while (!fiber->finished) WaitOn(fiber);
}

void Scheduler::WakeOne(const void* object) {
  const auto found = waiters_.find(object);
  if (found == waiters_.end()) return;
  Fiber* const fiber = found->second.front();
  found->second.pop_front();
  if (found->second.empty()) waiters_.erase(found);
  Unblock(fiber);
}

void Scheduler::WakeAll(const void* object) {
  auto found = waiters_.extract(object);
  if (found.empty()) return;
  for (Fiber* const fiber : found.mapped()) Unblock(fiber);
}

// ---------------------------------------------------------------- the loop

// True when the process cannot run now; `until` is set if it can later.
bool Scheduler::Held(const Process* process, TimePoint* until) const {
  *until = TimePoint::max();
  if (process == nullptr) return false;
  if (!process->alive) return true;
  *until = process->paused_until;
  return process->paused_until > now_;
}

void Scheduler::RunEvent(Event& event) {
  if (event.fiber != nullptr) {
    Fiber* const fiber = event.fiber;
    if (fiber->waits != event.waits) return;  // It was woken before.
    if (const auto found = waiters_.find(fiber->waits_on); found != waiters_.end()) {
      std::erase(found->second, fiber);
      if (found->second.empty()) waiters_.erase(found);
    }
    fiber->timed_out = true;
    return Unblock(fiber);
  }
  if (idle_.empty()) {
    idle_.push_back(NewFiber());
    idle_.back()->pooled = true;
  }
  Fiber* const fiber = idle_.back();
  idle_.pop_back();
  fiber->process = event.process;
  fiber->body = std::move(event.run);
  ++events_run_;
  Resume(fiber);
}

// Runs one fiber, or the next event. False when there is none until `until`.
bool Scheduler::RunOne(TimePoint until) {
  TimePoint held_until{};
  if (!ready_.empty()) {
    const size_t chosen = random_.Below(ready_.size());
    Fiber* const fiber = ready_[chosen];
    ready_.erase(ready_.begin() + static_cast<int64_t>(chosen));
    if (!Held(fiber->process, &held_until)) {
      Resume(fiber);
    } else if (held_until != TimePoint::max()) {
      After(held_until - now_, nullptr, [this, fiber] { ready_.push_back(fiber); });
    }
    return true;
  }
  if (events_.empty() || events_.front()->at > until) return false;
  std::unique_ptr<Event> event = PopEvent();
  now_ = std::max(now_, event->at);
  if (!Held(event->process, &held_until)) {
    RunEvent(*event);
  } else if (held_until != TimePoint::max()) {
    event->at = held_until;
    Push(std::move(event));
  } else {
    // The process is dead, so its destructors must not run either.
    static_cast<void>(event.release());
  }
  return true;
}

void Scheduler::Run(TimePoint until, const std::function<bool()>& done) {
  while (!done() && RunOne(until)) {
  }
}

}  // namespace penstock::world
