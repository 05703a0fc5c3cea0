// Stands in for penstock-prefill and penstock-decode where only their life as a process matters.
// FAKE_WORKER says what goes wrong: "WORKER_ID:ACTION" with
//   exit   refuses to start, with exit code 66
//   crash  is killed by SIGSEGV once the file FAKE_CRASH_WHEN exists
//   deaf   does not end at SIGTERM
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "base/config/config.h"
#include "proto/config.pb.h"

namespace penstock {
namespace {

int ActAs(const std::string& action, const std::string& ready_file) {
  if (action == "exit") {
    fmt::print(stderr, "the weights are gone\n");
    return static_cast<int>(ExitCode::kNoInput);
  }
  const absl::Status ready = WriteReadyFile(ready_file, "127.0.0.1:1");
  if (!ready.ok()) return static_cast<int>(ExitCodeFor(ready));
  if (action == "crash") {
    const char* when = std::getenv("FAKE_CRASH_WHEN");
    while (!std::filesystem::exists(when))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    fmt::print(stderr, "last words\n");
    fflush(stderr);
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  }
  if (action == "deaf") {
    for (;;) pause();  // SIGTERM is blocked.
  }
  ServeUntilSignal([] {});
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  penstock::BlockShutdownSignals();
  const auto config = penstock::LoadConfigOrExit<penstock::v1::WorkerConfig>(
      argc, argv, {.name = "fake-worker", .summary = "stands in for a worker"});
  const char* fault = std::getenv("FAKE_WORKER");
  const std::string mine = config.worker_id() + ":";
  const std::string all = fault == nullptr ? "" : fault;
  return penstock::ActAs(all.starts_with(mine) ? all.substr(mine.size()) : "", config.ready_file());
}
