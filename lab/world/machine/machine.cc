// The world's machine. These definitions take the place of the C++ library's and the system's in
// the program that links them, so that the code under test has simulated time, threads and
// randomness without knowing it, and cannot reach the real ones. Outside of a world they fail.
#include "lab/world/machine/machine.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "base/check.h"
#include "lab/world/machine/scheduler.h"

namespace penstock::world {
namespace {

Random g_entropy(0);

Scheduler& Running() {
  Scheduler* const scheduler = Scheduler::current();
  PENSTOCK_CHECK(scheduler != nullptr && scheduler->in_fiber(), "no thread of a world runs");
  return *scheduler;
}

// Nanoseconds of the real clock, before and after the world.
int64_t RealNanoseconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

void SeedEntropy(uint64_t seed) { g_entropy = Random(seed); }
uint64_t Entropy() { return g_entropy.Next(); }

std::chrono::system_clock::time_point WallTime() {
  const Scheduler* const scheduler = Scheduler::current();
  Duration time = scheduler->now().time_since_epoch() + kWallEpoch;
  if (const Process* const process = scheduler->process()) time += process->wall_clock_jump;
  return std::chrono::system_clock::time_point(time);
}

}  // namespace penstock::world

namespace world = penstock::world;

// ---------------------------------------------------------------- time

std::chrono::steady_clock::time_point std::chrono::_V2::steady_clock::now() noexcept {
  const world::Scheduler* const scheduler = world::Scheduler::current();
  if (scheduler == nullptr) {
    return time_point(std::chrono::nanoseconds(world::RealNanoseconds(CLOCK_MONOTONIC)));
  }
  return scheduler->now();
}

std::chrono::system_clock::time_point std::chrono::_V2::system_clock::now() noexcept {
  if (world::Scheduler::current() == nullptr) {
    return time_point(std::chrono::nanoseconds(world::RealNanoseconds(CLOCK_REALTIME)));
  }
  return world::WallTime();
}

// std::this_thread::sleep_for calls it.
extern "C" int nanosleep(const timespec* time, timespec*) {
  world::Running().Sleep(std::chrono::seconds(time->tv_sec) +
                         std::chrono::nanoseconds(time->tv_nsec));
  return 0;
}

// ---------------------------------------------------------------- threads

void std::thread::_M_start_thread(_State_ptr state, void (*)()) {
  // Shared only because a std::function must be copyable.
  std::shared_ptr<_State> shared(std::move(state));
  world::Scheduler& scheduler = world::Running();
  world::Fiber* const fiber =
      scheduler.StartThread(scheduler.process(), [shared] { shared->_M_run(); });
  _M_id = id(reinterpret_cast<native_handle_type>(fiber));
}

void std::thread::join() {
  world::Running().Join(reinterpret_cast<world::Fiber*>(_M_id._M_thread));
  _M_id = id();
}

// A std::condition_variable begins with its pthread_cond_t, so both have one address. Nothing else
// runs between unlocking and waiting.
void std::condition_variable::wait(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  world::Running().WaitOn(this);
  lock.lock();
}

void std::condition_variable::notify_one() noexcept {
  if (auto* const scheduler = world::Scheduler::current()) scheduler->WakeOne(this);
}
void std::condition_variable::notify_all() noexcept {
  if (auto* const scheduler = world::Scheduler::current()) scheduler->WakeAll(this);
}

// std::condition_variable::wait_until calls it for the steady clock.
extern "C" int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                      clockid_t clock, const timespec* until) {
  PENSTOCK_CHECK_EQ(clock, CLOCK_MONOTONIC);
  world::Scheduler& scheduler = world::Running();
  const penstock::TimePoint time{std::chrono::seconds(until->tv_sec) +
                                 std::chrono::nanoseconds(until->tv_nsec)};
  pthread_mutex_unlock(mutex);
  const bool woken = scheduler.WaitOn(condition, time);
  pthread_mutex_lock(mutex);
  return woken ? 0 : ETIMEDOUT;
}

// ---------------------------------------------------------------- randomness

extern "C" int getentropy(void* buffer, size_t size) {
  auto* bytes = static_cast<std::byte*>(buffer);
  while (size > 0) {
    const uint64_t random = world::Entropy();
    const size_t part = std::min(size, sizeof random);
    std::memcpy(bytes, &random, part);
    bytes += part;
    size -= part;
  }
  return 0;
}

std::random_device::result_type std::random_device::_M_getval() {
  return static_cast<result_type>(world::Entropy());
}
