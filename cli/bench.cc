#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include "bench/kernels.h"
#include "bench/report.h"
#include "cli/commands.h"
#include "cli/interrupts.h"
#include "cli/progress.h"

namespace penstock {
namespace {

using OnProgress = std::function<void(const std::string&)>;
using Rows = absl::StatusOr<std::vector<BenchRow>>;

Rows RunSuite(const BenchOptions& options, const OnProgress& progress) {
  return RunKernelBench({.threads = options.threads, .rounds = options.rounds}, progress);
}

}  // namespace

int Run(const BenchOptions& options) {
  Interrupts interrupts({SIGINT, SIGTERM});
  // A measurement holds nothing that outlives the process, and cannot be asked to stop half-way.
  OnInterrupt leave(interrupts, [] { _exit(128 + SIGINT); });
  Progress progress;
  const Rows rows = RunSuite(options, [&](const std::string& text) { progress.Line(text); });
  if (!rows.ok()) {
    fmt::print(stderr, "penstock bench: {}\n", Message(rows.status()));
    return static_cast<int>(ExitCodeFor(rows.status()));
  }
  const auto print = options.json ? ToJson : ToText;
  const std::string report = print(options.suite, MachineName(), *rows);
  fmt::print("{}{}", report, report.ends_with('\n') ? "" : "\n");
  return 0;
}

}  // namespace penstock
