#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace penstock::world {

// One life of a process of the cluster. Its threads and callbacks run only while it is alive, and
// not before `paused_until`. Never destroyed during a run, because abandoned fibers refer to it.
struct Process {
  std::string name;
  int host = 0;
  bool alive = true;
  TimePoint paused_until{};    // as after SIGSTOP
  TimePoint sends_until{};     // its slabs so far have left by then
  double slowness = 1;         // factor on the time of computing and of its messages
  Duration wall_clock_jump{};  // of the time of day
  std::string DebugName() const { return name; }
};

}  // namespace penstock::world
