#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/shell/command_line.h"

namespace penstock {

// The programs whose completion and man pages one program prints, itself first.
struct DescribedPrograms {
  std::function<std::vector<Program>()> programs;
  std::vector<std::string> others;  // further names for SEE ALSO
};

struct CompletionOptions {
  std::string shell;  // bash or zsh
  DescribedPrograms described;
};
struct ManualOptions {
  std::string program;
  DescribedPrograms described;
};
int Run(const CompletionOptions& options);
int Run(const ManualOptions& options);

// `completion SHELL` and `manual PROGRAM`. Neither is in the list of commands, which shall fit a
// screen.
void AddDescriptionCommands(CommandLine& line, const DescribedPrograms& described);

}  // namespace penstock
