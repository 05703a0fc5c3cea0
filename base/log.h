#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace penstock {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warning" or "error"; anything else is kInfo.
LogLevel ParseLogLevel(std::string_view name);

// One line on standard error: time, level, component, message. Whoever decides that something is
// an error logs it, once; everyone else returns a Status. Prompts and keys are never logged.
void LogLine(LogLevel level, std::string_view message);

// `component` is printed in every line, e.g. "decode-0". Before threads start.
void StartLogging(std::string_view component, LogLevel least);

template <class... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace penstock
