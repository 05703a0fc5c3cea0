#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "lab/simulate/sim_options.h"
#include "lab/simulate/sim_policy.h"

namespace penstock {
namespace {

constexpr uint32_t kWorkersMax = 4096;  // as many as an index takes

// Beside this program, or where packages have it.
std::string WorldProgram() {
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const std::filesystem::path beside = folder / kWorldProgram;
  if (std::filesystem::exists(beside, error)) return beside;
  return folder.parent_path() / "libexec/penstock" / kWorldProgram;
}

std::string ReadToEnd(int pipe) {
  std::string all;
  std::vector<char> part(1 << 16);
  for (ssize_t got; (got = read(pipe, part.data(), part.size())) != 0;) {
    if (got < 0 && errno != EINTR) break;
    if (got > 0) all.append(part.data(), static_cast<size_t>(got));
  }
  return all;
}

// Starts the program with one argument; its standard output is `output`.
absl::StatusOr<pid_t> Spawn(const std::string& program, const std::string& argument, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  char* const arguments[] = {const_cast<char*>(program.c_str()),
                             const_cast<char*>(argument.c_str()), nullptr};
  pid_t child = 0;
  const int error = posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return Unavailable("cannot start {}: {}; build the target {}", program, strerror(error),
                       kWorldProgram);
  }
  return child;
}

absl::Status Check(const SimOptions& options) {
  if (options.policy != "penstock" && MakeSimPolicy(options.policy, 0) == nullptr) {
    return InvalidArgument("policy {} is unknown; there are penstock, {}", options.policy,
                           fmt::join(SimPolicyNames(), ", "));
  }
  if (options.workers == 0 || options.workers + options.decode_workers >= kWorkersMax) {
    return InvalidArgument("there are {} workers; 1 to {} can be simulated",
                           options.workers + options.decode_workers, kWorkersMax - 1);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SimResult> Simulate(const SimJob& job) {
  RETURN_IF_ERROR(Check(job.options));
  int pipes[2];
  if (pipe2(pipes, O_CLOEXEC) != 0) return Unavailable("no pipe: {}", strerror(errno));
  const absl::StatusOr<pid_t> child = Spawn(WorldProgram(), JobText(job), pipes[1]);
  close(pipes[1]);
  const std::string said = child.ok() ? ReadToEnd(pipes[0]) : "";
  close(pipes[0]);
  RETURN_IF_ERROR(child.status());
  int status = 0;
  while (waitpid(*child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    return Internal("the simulated world was killed by signal {}", WTERMSIG(status));
  }
  return ParseResult(said);
}

}  // namespace penstock
