#pragma once

#include <string>

#include "base/lifecycle.h"
#include "base/log.h"

namespace penstock {

// How long open requests may go on after the first signal.
inline constexpr std::chrono::seconds kDrainGrace{10};

// What the mains of both workers do: start, say where, serve until a signal, drain, stop.
template <class Server, class Config>
ExitCode RunServer(const Config& config, const std::string& component) {
  StartLogging({.component = config.worker_id().empty() ? component : config.worker_id(),
                .least = ParseLogLevel(config.log_level()),
                .format = ParseLogFormat(config.log_format())});
  const auto fail = [](const absl::Status& status) {
    LogError("process_failed", "{}", Message(status));
    return ExitCodeFor(status);
  };
  // With the cluster's certificates nobody else gets in. Metrics ask for none.
  const bool guarded = config.insecure() || !config.cluster_ca().empty();
  absl::Status allowed = CheckListenAddress(config.listen(), guarded);
  if (!config.metrics_listen().empty()) {
    allowed.Update(CheckListenAddress(config.metrics_listen(), config.insecure()));
  }
  if (!allowed.ok()) return fail(allowed);
  auto server = Server::Start(config);
  if (!server.ok()) return fail(server.status());
  const absl::Status said = WriteReadyFile(config.ready_file(), (*server)->endpoint());
  if (!said.ok()) return fail(said);
  ServeUntilSignal([&] { (*server)->Stop(kDrainGrace); });
  Log(LogLevel::kInfo, "stopped");
  return ExitCode::kOk;
}

}  // namespace penstock
