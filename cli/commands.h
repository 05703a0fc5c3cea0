#pragma once

#include "base/lifecycle.h"
#include "cli/options.h"

namespace penstock {

// The subcommands. Each returns the process's exit code: an ExitCode, or 128 + n after signal n.
// Shutdown signals are blocked, and no other thread runs yet.
int Run(const UpOptions& options);
int Run(const GenerateOptions& options);
int Run(const ChatOptions& options);
int Run(const BenchOptions& options);
int Run(const BenchServeOptions& options);
int Run(const PlanOptions& options);
int Run(const TopOptions& options);
int Run(const TraceOptions& options);
int Run(const HealthOptions& options);
int Run(const KvOptions& options);
int Run(const AdminOptions& options);
int Run(const CalibrateOptions& options);
int Run(const EvalOptions& options);
int Run(const SimulateCommand& command);
int Run(const ExplainOptions& options);
int Run(const CompletionOptions& options);
int Run(const ManualOptions& options);
inline int Run(ExitCode code) { return static_cast<int>(code); }

}  // namespace penstock
