#include "worker/main/run_worker.h"

#include <string>

#include "base/log/log.h"
#include "base/rpc/grpc_log.h"
#include "worker/main/worker.h"

namespace penstock {
namespace {

// Open requests get this long to end after the first signal.
constexpr std::chrono::seconds kDrainGrace{10};

absl::Status CheckListens(const v1::WorkerConfig& config) {
  // The cluster's certificates protect the private service. The metrics port asks for none.
  const bool guarded = config.insecure() || !config.cluster_ca().empty();
  RETURN_IF_ERROR(CheckListenAddress(config.listen(), guarded));
  if (config.metrics_listen().empty()) return absl::OkStatus();
  return CheckListenAddress(config.metrics_listen(), config.insecure());
}

absl::StatusOr<std::unique_ptr<WorkerRuntime>> StartServing(v1::WorkerState::Role first,
                                                            const v1::WorkerConfig& config) {
  RETURN_IF_ERROR(CheckListens(config));
  ASSIGN_OR_RETURN(std::unique_ptr<WorkerRuntime> worker, StartWorker(first, config));
  RETURN_IF_ERROR(WriteReadyFile(config.ready_file(), worker->endpoint()));
  return worker;
}

}  // namespace

ExitCode RunWorker(v1::WorkerState::Role first, const v1::WorkerConfig& config) {
  const std::string role = first == v1::WorkerState::PREFILL ? "prefill" : "decode";
  StartLogging({.component = config.worker_id().empty() ? role : config.worker_id(),
                .min = ParseLogLevel(config.log_level()),
                .format = ParseLogFormat(config.log_format())});
  RedirectGrpcLog();
  RaiseDescriptorLimit();
  const auto worker = StartServing(first, config);
  if (!worker.ok()) {
    LogError("process_failed", "{}", Message(worker.status()));
    return ExitCodeFor(worker.status());
  }
  ServeUntilSignal([&] { (*worker)->Stop(kDrainGrace); });
  Log(LogLevel::kInfo, "stopped");
  return ExitCode::kOk;
}

}  // namespace penstock
