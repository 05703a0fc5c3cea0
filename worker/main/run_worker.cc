#include "worker/main/run_worker.h"

#include <string>

#include "base/bytes.h"
#include "base/log/log.h"
#include "base/memory_limit.h"
#include "base/rpc/grpc_log.h"
#include "worker/main/worker.h"
#include "worker/main/worker_options.h"

namespace penstock {
namespace {

absl::Status CheckListens(const v1::WorkerConfig& config) {
  // The cluster's certificates protect the private service. The metrics port asks for none.
  const bool guarded = config.insecure() || !config.cluster_ca().empty();
  RETURN_IF_ERROR(CheckListenAddress(config.listen(), guarded));
  if (!config.metrics_listen().empty()) {
    RETURN_IF_ERROR(CheckListenAddress(config.metrics_listen(), config.insecure()));
  }
  if (config.kv_events_listen().empty()) return absl::OkStatus();
  return CheckListenAddress(config.kv_events_listen(), config.insecure(), "kv_events_listen");
}

absl::Status CheckTopic(const v1::WorkerConfig& config) {
  // A subscriber names the topic in a frame of 256 bytes, the first of which is no part of it.
  constexpr size_t kTopicBytesMax = 255;
  const size_t bytes = config.kv_events_topic().size();
  if (bytes <= kTopicBytesMax) return absl::OkStatus();
  return InvalidArgument("kv_events_topic has {} bytes; at most {} are allowed", bytes,
                         kTopicBytesMax);
}

// The pools take their memory when it is first used, so one that is too large would end a worker
// under load.
absl::Status CheckMemory(const v1::WorkerConfig& config) {
  const bool on_cpu = config.device() == "cpu";
  const auto pool = ParseBytes(config.kv_memory());
  const auto dram = ParseBytes(config.dram_memory());
  if (!pool.ok() || !dram.ok()) return absl::OkStatus();  // Their owners say what is wrong.
  const auto draft = ParseBytes(config.draft_model().empty() ? "0B" : config.draft_kv_memory());
  const auto experts = ParseBytes(config.expert_memory().empty() ? "0B" : config.expert_memory());
  if (!draft.ok() || !experts.ok()) return absl::OkStatus();
  const uint64_t wanted = *dram + (on_cpu ? *pool + *draft + *experts : 0);
  const MemoryLimit limit = ReadMemoryLimit();
  if (wanted <= limit.bytes) return absl::OkStatus();
  return FailedPrecondition(
      "the memory of {}{}{}dram_memory={} is {}; this process may use {} ({}); lower it or raise "
      "the "
      "limit",
      on_cpu ? fmt::format("kv_memory={} and ", config.kv_memory()) : "",
      on_cpu && *draft > 0 ? fmt::format("draft_kv_memory={} and ", config.draft_kv_memory()) : "",
      on_cpu && *experts > 0 ? fmt::format("expert_memory={} and ", config.expert_memory()) : "",
      config.dram_memory(), FormatBytes(wanted), FormatBytes(limit.bytes), limit.source);
}

absl::StatusOr<std::unique_ptr<WorkerRuntime>> StartServing(v1::WorkerState::Role first,
                                                            const v1::WorkerConfig& config) {
  RETURN_IF_ERROR(CheckListens(config));
  RETURN_IF_ERROR(CheckTopic(config));
  RETURN_IF_ERROR(CheckMemory(config));
  ASSIGN_OR_RETURN(std::unique_ptr<WorkerRuntime> worker, StartWorker(first, config));
  std::string ready = worker->endpoint();
  if (const std::string metrics = worker->metrics_endpoint(); !metrics.empty()) {
    ready += "\nmetrics=" + metrics;
  }
  if (const std::string events = worker->kv_events_endpoint(); !events.empty()) {
    ready += "\nkv_events=" + events;
  }
  RETURN_IF_ERROR(WriteReadyFile(config.ready_file(), ready));
  return worker;
}

}  // namespace

ExitCode RunWorker(v1::WorkerState::Role first, const v1::WorkerConfig& config) {
  const std::string role = first == v1::WorkerState::PREFILL ? "prefill" : "decode";
  KeepNcclOnThisHost(config);
  LoadKernelsAtStart(config);
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
  ServeUntilSignal([&] { (*worker)->Stop(std::chrono::seconds(config.drain_s())); });
  Log(LogLevel::kInfo, "stopped");
  return ExitCode::kOk;
}

}  // namespace penstock
