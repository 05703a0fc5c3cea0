// penstock-lab: benchmarks, simulation, capacity planning, evaluation and calibration. `penstock`
// hands these commands over to it.
#include <filesystem>

#include "base/lifecycle.h"
#include "base/log/log.h"
#include "cli/shell/command_line.h"
#include "cli/shell/description_commands.h"
#include "cli/shell/lab_commands.h"
#include "lab/cli/commands.h"

namespace penstock {
namespace {

constexpr char kSummary[] = "measure, simulate and plan clusters of penstock";
constexpr char kFooter[] =
    "Each command also works as `penstock COMMAND`. `penstock-lab COMMAND --help` prints its "
    "options; see also `completion bash` (zsh) and --version.";

// The name under which it was started: messages repeat the words that were typed.
std::string NameOf(const char* started) {
  const bool by_penstock = std::filesystem::path(started).filename() == "penstock";
  return by_penstock ? "penstock" : std::string(kLabProgram);
}

void Declare(CommandLine& line) {
  AddBench(line);
  AddPlan(line);
  AddSimulate(line);
  AddCalibrate(line);
  AddEval(line);
  AddDescriptionCommands(
      line, {.programs = [&line] { return std::vector{line.Describe()}; }, .others = {"penstock"}});
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  penstock::BlockShutdownSignals();
  // Results are written to standard output, the log to standard error.
  penstock::StartLogging({.component = "penstock-lab", .min = penstock::LogLevel::kWarning});
  penstock::CommandLine line(penstock::NameOf(argv[0]), penstock::kSummary, penstock::kFooter);
  penstock::Declare(line);
  return line.Execute(argc, argv);
}
