#include "cli/shell/description_commands.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/lifecycle.h"
#include "base/rpc/process_info.h"
#include "cli/shell/validators.h"

namespace penstock {

void AddDescriptionCommands(CommandLine& line, const DescribedPrograms& described) {
  auto [complete, completion] =
      line.Add<CompletionOptions>("completion", "print a shell's completion script");
  completion.described = described;
  CommandLine::Hide(complete);
  complete.footer(
      "  bash: penstock completion bash > ~/.local/share/bash-completion/completions/penstock\n"
      "  zsh: penstock completion zsh > a folder of $fpath/_penstock");
  complete.add_option("SHELL", completion.shell, "bash or zsh")
      ->required()
      ->check(Quiet(CLI::IsMember({"bash", "zsh"})))
      ->type_name("");
  auto [page, manual] = line.Add<ManualOptions>("manual", "print a program's man page");
  manual.described = described;
  CommandLine::Hide(page);
  page.add_option("PROGRAM", manual.program, "penstock, penstock-router, ...")
      ->required()
      ->type_name("");
}

int Run(const CompletionOptions& options) {
  const std::vector<Program> programs = options.described.programs();
  fmt::print("{}", options.shell == "zsh" ? ZshCompletion(programs) : BashCompletion(programs));
  return 0;
}

int Run(const ManualOptions& options) {
  const std::vector<Program> programs = options.described.programs();
  const Program* found = nullptr;
  ManualInfo info{.version = ProcessVersion(), .others = options.described.others};
  for (const Program& program : programs) {
    if (program.name == options.program) {
      found = &program;
    } else {
      info.others.push_back(program.name);
    }
  }
  if (found == nullptr) {
    fmt::print(stderr, "{} manual: there is no program {}; there are {}\n", programs.front().name,
               options.program, fmt::join(info.others, ", "));
    return static_cast<int>(ExitCode::kUsage);
  }
  fmt::print("{}", ManualPage(*found, info));
  return 0;
}

}  // namespace penstock
