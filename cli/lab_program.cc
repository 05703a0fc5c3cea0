#include "cli/lab_program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/lifecycle.h"
#include "cli/shell/lab_commands.h"

namespace penstock {

bool IsLabCommand(int argc, char** argv) {
  return argc > 1 && std::ranges::any_of(kLabCommands, [&](const LabCommand& command) {
           return command.name == argv[1];
         });
}

int ExecuteLabProgram(char** argv) {
  const std::string program(kLabProgram);
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  execv((folder / program).c_str(), argv);  // Returns only if it fails.
  if (errno == ENOENT) execvp(program.c_str(), argv);
  const int failed = errno;
  if (failed != ENOENT) {
    fmt::print(stderr, "penstock {}: {} cannot be started: {}\n", argv[1], program,
               strerror(failed));
    return static_cast<int>(ExitCode::kOsError);
  }
  fmt::print(stderr,
             "penstock {0}: this command needs {1}, which is neither in {2} nor in PATH: install "
             "the package {1}, or build the target {1}\n",
             argv[1], program, folder.string());
  return static_cast<int>(ExitCode::kUnavailable);
}

}  // namespace penstock
