#pragma once

#include <string_view>

#include "base/log.h"

namespace penstock {

std::string_view LogLevelName(LogLevel level);
// The level as from now on; returns the one before. Any thread, once logging has started.
LogLevel SetLogLevel(LogLevel least);
LogLevel CurrentLogLevel();

}  // namespace penstock
