// penstock: starts a local cluster, talks to one and operates it. Measurements and simulations are
// commands of penstock-lab.
#include "base/lifecycle.h"
#include "base/log/log.h"
#include "cli/client/commands.h"
#include "cli/lab_program.h"
#include "cli/local/commands.h"
#include "cli/operate/commands.h"
#include "cli/programs.h"
#include "cli/shell/command_line.h"
#include "cli/shell/description_commands.h"
#include "cli/shell/lab_commands.h"

namespace penstock {
namespace {

constexpr char kSummary[] = "serve a language model with prefill and decode on separate workers";
constexpr char kFooter[] =
    "Examples: penstock up --model models/penstock-tiny\n"
    "          penstock generate --stats \"Once upon a time\"\n"
    "`penstock COMMAND --help` prints its options; see also `completion bash` (zsh) and --version.";

void Declare(CommandLine& line) {
  AddLocalCommands(line);
  AddClientCommands(line);
  AddOperateCommands(line);
  for (const LabCommand& command : kLabCommands) {
    line.AddProvided(std::string(command.name), std::string(command.summary),
                     std::string(kLabProgram));
  }
  AddDescriptionCommands(line, {.programs = [&line] { return ProductPrograms(line.Describe()); },
                                .others = {std::string(kLabProgram)}});
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  if (penstock::IsLabCommand(argc, argv)) return penstock::ExecuteLabProgram(argv);
  penstock::BlockShutdownSignals();
  // Results are written to standard output, the log to standard error.
  penstock::StartLogging({.component = "penstock", .min = penstock::LogLevel::kWarning});
  penstock::CommandLine line("penstock", penstock::kSummary, penstock::kFooter);
  penstock::Declare(line);
  return line.Execute(argc, argv);
}
