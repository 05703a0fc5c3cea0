#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace penstock::sim {

// Time, chance and what happens next in one simulated world. Everything follows from the seed.
// One thread.
class Simulation {
 public:
  explicit Simulation(uint64_t seed);

  uint64_t Random();
  uint64_t Below(uint64_t limit) { return Random() % limit; }
  bool Chance(uint64_t of_1000) { return Below(1000) < of_1000; }
  Duration Between(Duration min, Duration max);

  const ManualClock& clock() const { return clock_; }
  TimePoint now() const { return clock_.Now(); }

  // Equal times keep their order.
  void After(Duration delay, std::function<void()> event);
  // Runs the next event; false when there is none, or none until `end`.
  bool Step(TimePoint end);

  // One line of the history.
  void Note(std::string line);
  // The first violation counts.
  void Fail(const std::string& what);
  bool failed() const { return !failure_.empty(); }
  // The seed, what failed, and the last 50 lines of the history.
  std::string Report() const;
  // A hash of the whole history: equal runs have equal ones.
  uint64_t history_hash() const { return history_hash_; }

 private:
  const uint64_t seed_;
  uint64_t state_;
  ManualClock clock_;
  std::multimap<TimePoint, std::function<void()>> events_;
  std::deque<std::string> history_;
  uint64_t history_hash_ = 0;
  std::string failure_;
};

}  // namespace penstock::sim
