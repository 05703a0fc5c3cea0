#pragma once

#include <variant>

#include "base/lifecycle.h"
#include "cli/options.h"
#include "cli/program.h"

namespace penstock {

// What is to be done; an exit code when that is nothing any more, because help, the version or an
// error has been printed.
using Command = std::variant<ExitCode, UpOptions, GenerateOptions, ChatOptions, BenchOptions,
                             BenchServeOptions, PlanOptions, TopOptions, TraceOptions,
                             HealthOptions, KvOptions, AdminOptions, CalibrateOptions, EvalOptions,
                             SimulateCommand, ExplainOptions, CompletionOptions, ManualOptions>;

Command ParseCommandLine(int argc, char** argv);

// All that it understands.
Program DescribeCommandLine();

}  // namespace penstock
