#pragma once

#include <string_view>

#include "base/log/log.h"

namespace penstock {

std::string_view LogLevelName(LogLevel level);
// Sets the level and returns the previous one. Any thread may call it after StartLogging.
LogLevel SetLogLevel(LogLevel min);
LogLevel CurrentLogLevel();
// Lines about requests that were dropped by the rate limit since the start.
uint64_t LogLinesDropped();

}  // namespace penstock
