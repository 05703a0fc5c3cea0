#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "lab/world/machine/process.h"
#include "lab/world/machine/random.h"

namespace penstock::world {

// A thread of the code under test. It runs until it waits, and then others run.
struct Fiber {
  ucontext_t context{};
  std::byte* stack = nullptr;
  std::function<void()> body;
  Process* process = nullptr;
  const void* waits_on = nullptr;  // a condition variable or a fiber
  uint64_t waits = 0;              // number of waits so far: an old time-out changes nothing
  bool timed_out = false;
  bool finished = false;
  bool pooled = false;  // runs events, one after the other
};

// Runs every thread of every process as a fiber of one thread, and the events of the world, in
// simulated time. The time moves only when nothing can run. Which of several runnable fibers goes
// first is drawn from the seed.
class Scheduler {
 public:
  explicit Scheduler(uint64_t seed);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // The scheduler of the world that runs now; nullptr: none.
  static Scheduler* current();

  TimePoint now() const { return now_; }
  Process* process() const { return running_ == nullptr ? nullptr : running_->process; }
  bool in_fiber() const { return running_ != nullptr; }
  uint64_t events_run() const { return events_run_; }

  // Runs `event` in `process` (nullptr: in none) after `delay`. Events of equal time keep their
  // order. Dropped when the process is dead by then.
  void After(Duration delay, Process* process, std::function<void()> event);
  Fiber* StartThread(Process* process, std::function<void()> body);

  // These act on the running fiber.
  void Sleep(Duration time);
  void WaitOn(const void* object);
  bool WaitOn(const void* object, TimePoint until);  // false: the time has passed
  void Join(Fiber* fiber);
  void WakeOne(const void* object);
  void WakeAll(const void* object);

  // Runs until `done` is true, or the time is `until`. Checked after every event.
  void Run(TimePoint until, const std::function<bool()>& done);

 private:
  struct Event {
    TimePoint at;
    uint64_t number = 0;
    Process* process = nullptr;
    Fiber* fiber = nullptr;  // to wake, if it is still in its wait `waits`
    uint64_t waits = 0;
    std::function<void()> run;
  };
  struct Later {
    bool operator()(const std::unique_ptr<Event>& a, const std::unique_ptr<Event>& b) const {
      return a->at != b->at ? a->at > b->at : a->number > b->number;
    }
  };

  static void Enter();
  Fiber* NewFiber();
  std::unique_ptr<Event> NewEvent();
  void Push(std::unique_ptr<Event> event);
  std::unique_ptr<Event> PopEvent();
  bool RunOne(TimePoint until);
  void RunEvent(Event& event);
  void Resume(Fiber* fiber);
  void Block();
  void Unblock(Fiber* fiber);
  bool Held(const Process* process, TimePoint* until) const;

  Random random_;
  TimePoint now_{std::chrono::seconds(1000)};
  ucontext_t main_{};
  Fiber* running_ = nullptr;
  uint64_t next_event_ = 0;
  uint64_t events_run_ = 0;
  std::vector<std::unique_ptr<Event>> events_;  // a heap
  std::vector<Fiber*> ready_;
  std::unordered_map<const void*, std::deque<Fiber*>> waiters_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;  // pooled fibers without an event
};

}  // namespace penstock::world
