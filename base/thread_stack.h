#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace penstock {

// A thread of this process by its name (NameThisThread).
std::optional<pid_t> FindThread(std::string_view name);

// The calls that `thread` is in, the innermost first: each a function's name, or file and offset
// where the program has no symbols. Empty if the thread does not answer within `limit`, because the
// kernel or a debugger holds it. It interrupts the thread with a signal (SIGRTMIN + 1), as a
// profiler does.
std::vector<std::string> StackOf(pid_t thread, Duration limit);

}  // namespace penstock
