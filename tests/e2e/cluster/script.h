#pragma once

#include <string>
#include <utility>

namespace penstock {

// Runs a command of the shell. Its output, and whether it ended with 0.
std::pair<std::string, bool> RunScript(const std::string& command);

// True when tests/e2e/python/checks.py ran at least one check, all of them hold, and each has
// printed "ok".
bool AllHold(const std::string& output);

}  // namespace penstock
