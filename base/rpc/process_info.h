#pragma once

#include <google/protobuf/message.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/log/log_level.h"
#include "base/status.h"

namespace penstock {

// What a process says of itself to its operators. Thread-compatible.
struct ProcessInfo {
  std::string program;  // "penstock-router" ...
  // Every field of its configuration and what it is, as it would be typed, in the order of --help.
  // No secrets: those are in files, and here stand the paths.
  std::vector<std::pair<std::string, std::string>> settings;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
};

// Of a process that starts now with this configuration.
ProcessInfo ProcessInfoOf(const std::string& program, const google::protobuf::Message& config);

std::string ProcessVersion();  // "0.1.0"
std::string ProcessBuild();    // "g++ 12.2.0, optimised"

// Into a v1::ServerInfo, which base/ does not know.
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

// Sets the level and returns the name of the one before. INVALID_ARGUMENT for none that there is.
absl::StatusOr<std::string> ChangeLogLevel(const std::string& level);

}  // namespace penstock
