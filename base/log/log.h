#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "base/log/log_line.h"

namespace penstock {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warning" or "error"; anything else is kInfo.
LogLevel ParseLogLevel(std::string_view name);
// "json"; anything else is kText.
LogFormat ParseLogFormat(std::string_view name);

// What has happened, in lower case and underscores: a constant, so that it can be searched for.
// docs/operations/logs.md lists all of them, and a test compares.
class LogEvent {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a literal is one
  consteval LogEvent(const char* name) : name_(name) {
    for (const char c : name_) {
      if (c != '_' && (c < 'a' || c > 'z')) throw "not the name of an event";
    }
  }
  std::string_view name() const { return name_; }

 private:
  std::string_view name_;
};

// Whose line it is. Views, until the line is written.
struct RequestTag {
  std::string_view request;  // its id, the client's or ours
  std::string_view trace;    // 32 hex digits; empty: unknown
};

// The same, kept.
struct RequestName {
  std::string request;
  std::string trace;
  RequestTag tag() const { return {request, trace}; }
};

// One line on standard error: time, level, component, then for requests their id and trace, the
// event, and what is known of it. Whoever decides that something is an error logs it, once;
// everyone else returns a Status. Prompts, answers and keys are never logged. Any thread.
void Log(LogLevel level, LogEvent event, std::initializer_list<LogField> fields = {});
// At level info at most kRequestLinesMax a second are written, unless the level in force is debug:
// what is left out is counted (LogLinesDropped) and said in an event `log_dropped`.
void LogRequest(LogLevel level, const RequestTag& tag, LogEvent event,
                std::initializer_list<LogField> fields = {});
inline constexpr int kRequestLinesMax = 200;

// `component` is in every line, e.g. "decode-0". Before threads start.
struct LogOptions {
  std::string component;
  LogLevel min = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
};
void StartLogging(const LogOptions& options);

// Events whose story is best told in words: `message` is their only field.
template <class... Args>
void LogInfo(LogEvent event, fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kInfo, event, {{"message", fmt::format(format, std::forward<Args>(args)...)}});
}
template <class... Args>
void LogDebug(LogEvent event, fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kDebug, event, {{"message", fmt::format(format, std::forward<Args>(args)...)}});
}
template <class... Args>
void LogWarning(LogEvent event, fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kWarning, event, {{"message", fmt::format(format, std::forward<Args>(args)...)}});
}
template <class... Args>
void LogError(LogEvent event, fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kError, event, {{"message", fmt::format(format, std::forward<Args>(args)...)}});
}

}  // namespace penstock
