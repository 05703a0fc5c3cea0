#pragma once

#include "base/program/program.h"

namespace CLI {
class App;
}

namespace penstock {

// The description of a program or command whose options were declared with CLI11.
Program DescribeApp(const CLI::App& app);

}  // namespace penstock
