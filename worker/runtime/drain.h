#pragma once

#include <functional>

#include "base/clock.h"

namespace penstock {

// The work that a worker still has to end, and the choices that it has moved away.
struct OpenWork {
  int64_t running = 0;   // sequences or prompts
  int64_t handoffs = 0;  // open, in either direction
  uint64_t moved = 0;    // choices that other workers have taken over, since the start
};

// Waits until no work is open or `limit` has passed, looking every 10 ms. If work is open at the
// start, logs the progress then, each second and at the end. True when no work is open.
bool Drain(const std::function<OpenWork()>& open_work, Duration limit);

}  // namespace penstock
