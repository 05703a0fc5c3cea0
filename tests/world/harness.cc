#include "tests/world/harness.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log/log.h"
#include "base/log/log_level.h"
#include "lab/world/machine/disk.h"

namespace penstock::world {
namespace {

constexpr rlim_t kCpuSecondsMax = 60;

// The head of a child's report. Behind it come the failure and the requests that were refused.
struct Told {
  Totals totals;
  uint64_t history = 0;
  size_t failure_bytes = 0;
};

void WriteAll(int pipe, const void* bytes, size_t size) {
  const auto* next = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t put = write(pipe, next, size);
    PENSTOCK_CHECK(put > 0);
    next += put;
    size -= static_cast<size_t>(put);
  }
}

[[noreturn]] void RunAndTell(const Plan& plan, int pipe) {
  const rlimit limit{kCpuSecondsMax, kCpuSecondsMax};
  setrlimit(RLIMIT_CPU, &limit);
  const char* const level = std::getenv("WORLD_LOG");
  // Not StartLogging, whose writer is a thread outside of the world.
  spdlog::set_default_logger(spdlog::stderr_logger_mt("world"));
  SetLogLevel(ParseLogLevel(level == nullptr ? "error" : level));
  World& world = *new World(plan);
  const Outcome outcome = world.Run();
  const Told told{.totals = outcome.totals,
                  .history = outcome.history,
                  .failure_bytes = outcome.failure.size()};
  WriteAll(pipe, &told, sizeof told);
  WriteAll(pipe, outcome.failure.data(), outcome.failure.size());
  WriteAll(pipe, outcome.refused.data(), outcome.refused.size());
  _exit(0);  // Nothing of the world is destroyed.
}

std::string ReadAll(int pipe) {
  std::string all;
  char part[4096];
  for (ssize_t got; (got = read(pipe, part, sizeof part)) > 0;) {
    all.append(part, static_cast<size_t>(got));
  }
  return all;
}

// The plan's events are one list: faults, then requests.
size_t Events(const Plan& plan) { return plan.faults.size() + plan.requests.size(); }

Plan Without(const Plan& plan, size_t begin, size_t end) {
  Plan less = plan;
  less.faults.clear();
  less.requests.clear();
  for (size_t i = 0; i < Events(plan); ++i) {
    if (i >= begin && i < end) continue;
    if (i < plan.faults.size()) {
      less.faults.push_back(plan.faults[i]);
    } else {
      less.requests.push_back(plan.requests[i - plan.faults.size()]);
    }
  }
  return less;
}

}  // namespace

Child::Child(const Plan& plan) {
  int pipes[2];
  PENSTOCK_CHECK_EQ(pipe2(pipes, O_CLOEXEC), 0);
  process_id_ = fork();
  PENSTOCK_CHECK(process_id_ >= 0);
  if (process_id_ == 0) {
    close(pipes[0]);
    RunAndTell(plan, pipes[1]);
  }
  close(pipes[1]);
  pipe_ = pipes[0];
}

Outcome RunInChild(const Plan& plan) { return Child(plan).Wait(); }

Outcome Child::Wait() {
  const std::string said = ReadAll(pipe_);
  close(pipe_);
  int status = 0;
  waitpid(process_id_, &status, 0);
  std::filesystem::remove_all(DisksOf(process_id_));
  Outcome outcome;
  if (said.size() < sizeof(Told)) {
    outcome.totals.worlds = outcome.totals.broken = 1;
    outcome.failure =
        WIFSIGNALED(status)
            ? fmt::format("killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))
            : fmt::format("exited with {}", WEXITSTATUS(status));
    return outcome;
  }
  Told told;
  std::memcpy(&told, said.data(), sizeof told);
  outcome.totals = told.totals;
  outcome.totals.worlds = 1;
  outcome.history = told.history;
  outcome.failure = said.substr(sizeof told, told.failure_bytes);
  outcome.totals.broken = outcome.failure.empty() ? 0 : 1;
  outcome.refused = said.substr(sizeof told + told.failure_bytes);
  return outcome;
}

Plan Shrink(const Plan& plan) {
  Plan least = plan;
  for (size_t part = (Events(least) + 1) / 2; part > 0; part = part == 1 ? 0 : (part + 1) / 2) {
    for (size_t begin = 0; begin < Events(least);) {
      Plan less = Without(least, begin, begin + part);
      if (RunInChild(less).failure.empty()) {
        begin += part;
      } else {
        least = std::move(less);
      }
    }
  }
  return least;
}

std::string ReportOf(const Plan& plan, const Outcome& outcome, bool shrink) {
  std::string report = fmt::format("seed {} (run it alone with WORLD_SEED={}): {}\n", plan.seed,
                                   plan.seed, outcome.failure);
  if (!shrink) return report;
  const Plan least = Shrink(plan);
  report += fmt::format("{} of {} events are enough, with {} prefill and {} decode workers: {}\n",
                        Events(least), Events(plan), plan.prefill_workers, plan.decode_workers,
                        RunInChild(least).failure);
  for (const Fault& fault : least.faults) report += Describe(fault) + "\n";
  for (const RequestPlan& request : least.requests) report += Describe(request) + "\n";
  return report;
}

double CountOf(const Totals& totals, std::string_view metric) {
  const auto found = std::find(std::begin(kCounted), std::end(kCounted), metric);
  PENSTOCK_CHECK(found != std::end(kCounted));
  return totals.counts[static_cast<size_t>(found - std::begin(kCounted))];
}

std::string Summary(const Totals& totals) {
  std::string summary = fmt::format(
      "{} worlds, {} of them broken; {} requests: {} ok (first token after {:.2f} ms), {} "
      "cancelled, {} late, {} failed; {} migrations; {} tokens, {} prompt tokens, {} of them "
      "cached; {} answers of lossy KV; {} events\n",
      totals.worlds, totals.broken, totals.requests, totals.ok,
      Milliseconds(totals.first_tokens) / static_cast<double>(std::max<int64_t>(1, totals.ok)),
      totals.cancelled, totals.late, totals.failed, totals.migrations, totals.tokens,
      totals.prompt_tokens, totals.cached_tokens, totals.lossy, totals.events);
  for (size_t i = 0; i < totals.faults.size(); ++i) {
    summary += fmt::format("{} {}, ", totals.faults[i], FaultName(static_cast<FaultKind>(i)));
  }
  summary += "\n";
  for (size_t i = 0; i < totals.counts.size(); ++i) {
    summary += fmt::format("{:.0f} {}, ", totals.counts[i], kCounted[i]);
  }
  summary += fmt::format("\n{} requests with a wrong token, {} stuck requests, {} leaked blocks",
                         totals.wrong, totals.stuck, totals.leaked_blocks);
  return summary;
}

}  // namespace penstock::world
