#pragma once

#include <string_view>

#include "base/log/log.h"

namespace penstock {

std::string_view LogLevelName(LogLevel level);
// Sets the level and returns the previous one. Any thread may call it after StartLogging.
LogLevel SetLogLevel(LogLevel min);
LogLevel CurrentLogLevel();
// Lines dropped since the start: by the rate limit, and because standard error did not accept them.
uint64_t LogLinesDropped();

}  // namespace penstock
