#pragma once

#include <functional>

#include "base/clock.h"

namespace penstock {

// Looks every 10 ms until `done` or until `limit` has passed. True when it was done.
bool WaitUntil(const std::function<bool()>& done, Duration limit);

}  // namespace penstock
