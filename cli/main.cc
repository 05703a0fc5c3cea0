// penstock: starts a local cluster, talks to one, and measures.
#include <cstdio>
#include <variant>

#include "base/log/log.h"
#include "cli/command_line.h"
#include "cli/commands.h"

int main(int argc, char** argv) {
  penstock::BlockShutdownSignals();
  penstock::StartLogging({.component = "penstock",
                          .min = penstock::LogLevel::kWarning});  // Results own standard output.
  const penstock::Command command = penstock::ParseCommandLine(argc, argv);
  return std::visit([](const auto& options) { return penstock::Run(options); }, command);
}
