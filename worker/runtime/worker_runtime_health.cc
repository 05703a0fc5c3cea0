#include <optional>
#include <string>
#include <vector>

#include "base/log/log.h"
#include "base/thread_stack.h"
#include "worker/runtime/worker_identity.h"
#include "worker/runtime/worker_runtime.h"

namespace penstock {
namespace {

// The service name that liveness probes ask for. The name "" is also not serving during a drain.
constexpr char kLiveService[] = "live";
constexpr Duration kStackPatience = std::chrono::seconds(1);

// The engine of either role may be the one that stands: the other one waits for its turn.
void LogStacks() {
  for (const char* name : {"engine-prefill", "engine-decode"}) {
    const std::optional<pid_t> thread = FindThread(name);
    if (!thread) continue;
    const std::vector<std::string> frames = StackOf(*thread, kStackPatience);
    Log(LogLevel::kError, "engine_stack",
        {{"thread", name},
         {"stack", frames.empty() ? "the thread does not answer: the kernel or a debugger holds it"
                                  : fmt::format("{}", fmt::join(frames, " < "))}});
  }
}

}  // namespace

v1::WorkerState WorkerRuntime::State() const {
  v1::WorkerState state;
  state.set_phase(v1::WorkerState::STARTING);
  if (!ready_) return state;
  state = described_;
  if (draining()) state.set_phase(v1::WorkerState::DRAINING);
  if (stalled_) state.set_phase(v1::WorkerState::UNHEALTHY);
  SetPoolLoad(*host_->pool, &state);
  lossy_->Describe(&state);
  evictions_.Describe(&state);
  selections_.Describe(&state);
  blends_.Describe(&state);
  DescribeTiers(&state);
  switch_->Describe(&state);
  return state;
}

void WorkerRuntime::BeginDrain() {
  stopping_ = true;
  if (server_ != nullptr) ShowHealth();
}

absl::Status WorkerRuntime::SetDraining(bool draining) {
  if (stopping_) return FailedPrecondition("this process is stopping");
  if (asked_to_drain_.exchange(draining) == draining) return absl::OkStatus();
  draining ? LogInfo("drain_asked", "an operator takes this worker out of service")
           : LogInfo("drain_ended", "an operator takes this worker into service again");
  ShowHealth();
  return absl::OkStatus();
}

void WorkerRuntime::OnTurning() {
  turning_ = switch_->turning();
  ShowHealth();
}

void WorkerRuntime::ShowHealth() {
  MutexLock lock(health_mutex_);
  server_->SetServing("", ready_ && !draining() && !stalled_);
  server_->SetServing(kLiveService, live());
}

void WorkerRuntime::OnStall(bool stalled) {
  stalled_ = stalled;
  ShowHealth();
  if (stalled) {
    LogError("engine_stalled", "no step for {} ms (--stall_ms): unhealthy until the next step",
             options_.stall_max.count() / 1'000'000);
    LogStacks();
  } else {
    LogWarning("engine_moves", "healthy again");
  }
}

// The engines may stop afterwards: nothing counts their beats, and routers do not watch any more.
void WorkerRuntime::StopWatches() {
  watchdog_.reset();
  if (status_ != nullptr) status_->Stop();
}

}  // namespace penstock
