#include <fmt/format.h>

#include "cli/commands.h"

namespace penstock {

int Run(const BenchOptions& options) {
  fmt::print(stderr, "penstock bench: no suite {} in this build\n", options.suite);
  return static_cast<int>(ExitCode::kUsage);
}

}  // namespace penstock
