#pragma once

#include <atomic>
#include <chrono>

namespace penstock {

using Duration = std::chrono::nanoseconds;
// Nanoseconds since an epoch of the clock's choice; only differences have a meaning.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// Interface, so that tests and the simulator can use a ManualClock. Any thread may call it.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

// The monotonic clock of the machine.
class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

// A clock that moves only when Advance is called: for tests and the simulator. Any thread.
class ManualClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(Duration(now_.load())); }
  void Advance(Duration by) { now_ += by.count(); }

 private:
  std::atomic<int64_t> now_{0};
};

// Seconds of the machine's monotonic clock since `begin`, for reports.
inline double ElapsedSeconds(TimePoint begin) {
  return std::chrono::duration<double>(SteadyClock().Now() - begin).count();
}

// The wall clock's seconds since 1970, for what people and clients read. Deadlines are on a Clock.
inline int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

inline double Milliseconds(Duration d) { return static_cast<double>(d.count()) / 1e6; }

}  // namespace penstock
