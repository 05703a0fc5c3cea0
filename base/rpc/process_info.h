#pragma once

#include <google/protobuf/message.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/log/log_level.h"
#include "base/status.h"

namespace penstock {

// The facts that a process reports about itself to its operators. Not thread-safe.
struct ProcessInfo {
  std::string program;  // "penstock-router" ...
  // Every field of its configuration with its value as typed, in the order of --help, but hidden
  // ones only if they are set. It contains no secrets: fields hold the paths of key files.
  std::vector<std::pair<std::string, std::string>> settings;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
};

// Describes a process that starts now with this configuration.
ProcessInfo ProcessInfoOf(const std::string& program, const google::protobuf::Message& config);

std::string ProcessVersion();  // e.g. "0.1.0"
std::string ProcessBuild();    // e.g. "g++ 12.2.0, optimised"

// Fills a v1::ServerInfo. A template, because base/ does not include proto/.
template <class ServerInfo>
void DescribeProcess(const ProcessInfo& process, ServerInfo* info) {
  info->set_program(process.program);
  info->set_version(ProcessVersion());
  info->set_build(ProcessBuild());
  const std::chrono::duration<double> uptime = std::chrono::steady_clock::now() - process.started;
  info->set_uptime_s(uptime.count());
  info->set_log_level(std::string(LogLevelName(CurrentLogLevel())));
  for (const auto& [name, value] : process.settings) {
    auto* setting = info->add_config();
    setting->set_name(name);
    setting->set_value(value);
  }
}

// Sets the log level and returns the name of the previous one. Returns INVALID_ARGUMENT for an
// unknown level.
absl::StatusOr<std::string> ChangeLogLevel(const std::string& level);

}  // namespace penstock
