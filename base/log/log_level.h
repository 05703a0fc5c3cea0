#pragma once

#include <string_view>

#include "base/log/log.h"

namespace penstock {

std::string_view LogLevelName(LogLevel level);
// The level as from now on; returns the one before. Any thread, once logging has started.
LogLevel SetLogLevel(LogLevel min);
LogLevel CurrentLogLevel();
// Lines of requests that were left out because there were too many; since the start.
uint64_t LogLinesDropped();

}  // namespace penstock
