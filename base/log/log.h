#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "base/log/log_line.h"

namespace penstock {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Parses "debug", "info", "warning" or "error"; any other name is kInfo.
LogLevel ParseLogLevel(std::string_view name);
// Parses "json"; any other name is kText.
LogFormat ParseLogFormat(std::string_view name);

// The name of an event: lower case with underscores, a compile-time constant that can be searched
// for. docs/operations/logs.md lists all events, and a test compares the two.
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

// The request that a line is about. Views, which must stay valid until the line is written.
struct RequestTag {
  std::string_view request;  // request id, the client's or ours
  std::string_view trace;    // trace id, 32 hex digits; empty: unknown
};

// A RequestTag that owns its strings.
struct RequestName {
  std::string request;
  std::string trace;
  RequestTag tag() const { return {request, trace}; }
};

// Writes one line to standard error: time, level, component, then for requests their id and trace,
// the event, and its fields. The function that decides that something is an error logs it, once;
// all other functions return a Status. Prompts, answers and keys are never logged. Any thread may
// log.
//
// This room, base/log, formats and writes log lines. It may use base/ only. It does not know the
// events of other rooms.
void Log(LogLevel level, LogEvent event, std::initializer_list<LogField> fields = {});
// Log for an event of a request. At level info at most kRequestLinesMax lines a second are written,
// unless the present level is debug. Dropped lines are counted (LogLinesDropped) and reported in an
// event `log_dropped`.
void LogRequest(LogLevel level, const RequestTag& tag, LogEvent event,
                std::initializer_list<LogField> fields = {});
inline constexpr int kRequestLinesMax = 200;

// Options of StartLogging. `component` is in every line, e.g. "decode-0".
struct LogOptions {
  std::string component;
  LogLevel min = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
};
// Call it before other threads start.
void StartLogging(const LogOptions& options);

// Log with a formatted text as the only field, `message`.
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
