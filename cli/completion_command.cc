#include <fmt/format.h>

#include <algorithm>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/program.h"

namespace penstock {

int Run(const CompletionOptions& options) {
  const std::vector<Program> programs = AllPrograms(DescribeCommandLine());
  fmt::print("{}", options.shell == "zsh" ? ZshCompletion(programs) : BashCompletion(programs));
  return 0;
}

int Run(const ManualOptions& options) {
  const std::vector<Program> programs = AllPrograms(DescribeCommandLine());
  const auto found = std::find_if(programs.begin(), programs.end(), [&](const Program& program) {
    return program.name == options.program;
  });
  if (found == programs.end()) {
    fmt::print(stderr, "penstock manual: there is no program {}\n", options.program);
    return static_cast<int>(ExitCode::kUsage);
  }
  fmt::print("{}", ManualPage(*found, programs));
  return 0;
}

}  // namespace penstock
