// penstock-lab-world: one run of `penstock simulate`. Its argument is the job and its output the
// result, both as JSON (sim_message.cc).
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "base/log/log_level.h"
#include "lab/simulate/world/trace_world.h"

namespace penstock {
namespace {

absl::StatusOr<SimResult> RunJob(const std::string& text) {
  ASSIGN_OR_RETURN(const SimJob job, ParseJob(text));
  ASSIGN_OR_RETURN(const SimTrace trace, LoadSource(job.source));
  TraceWorld& world = *new TraceWorld(trace, job.options);  // never destroyed, as its processes
  return world.Run();
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "penstock-lab-world: `penstock simulate` runs this program\n");
    return 64;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Not StartLogging, whose writer is a thread outside of the world.
  spdlog::set_default_logger(spdlog::stderr_logger_mt("world"));
  penstock::SetLogLevel(penstock::LogLevel::kError);
  fmt::print("{}\n", penstock::ResultText(penstock::RunJob(argv[1])));
  std::fflush(stdout);
  _exit(0);
}
