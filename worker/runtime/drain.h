#pragma once

#include <functional>

#include "base/clock.h"

namespace penstock {

// What a worker that drains still has, and what it has given away.
struct DrainLeft {
  int64_t running = 0;   // sequences or prompts
  int64_t handoffs = 0;  // open, in either direction
  uint64_t moved = 0;    // choices that other workers have taken over, since the start
};

// Looks every 10 ms until nothing is left or `limit` has passed; where something is, logs how far
// it is at the start, each second and at the end. True when nothing is left.
bool Drain(const std::function<DrainLeft()>& left, Duration limit);

}  // namespace penstock
