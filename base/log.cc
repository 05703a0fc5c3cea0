#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "base/log_level.h"

namespace penstock {
namespace {

spdlog::level::level_enum Level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

LogLevel ParseLogLevel(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

std::string_view LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

LogLevel CurrentLogLevel() {
  const auto level = spdlog::default_logger_raw()->level();
  for (const LogLevel name : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning}) {
    if (level <= Level(name)) return name;
  }
  return LogLevel::kError;
}

LogLevel SetLogLevel(LogLevel least) {
  const LogLevel before = CurrentLogLevel();
  spdlog::default_logger_raw()->set_level(Level(least));
  return before;
}

void StartLogging(std::string_view component, LogLevel least) {
  auto logger = spdlog::stderr_color_mt(std::string(component));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%f%z %L %n %v");
  logger->set_level(Level(least));
  spdlog::set_default_logger(std::move(logger));
}

void LogLine(LogLevel level, std::string_view message) {
  spdlog::default_logger_raw()->log(Level(level), "{}", message);
}

}  // namespace penstock
