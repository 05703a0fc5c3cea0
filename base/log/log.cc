#include "base/log/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>

#include "base/log/log_level.h"
#include "base/log/log_output.h"
#include "base/log/log_rate_limit.h"
#include "base/mutex.h"

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

// A process that ends gives a slow reader this long to take the last lines.
constexpr Duration kFlushAtExit = std::chrono::seconds(1);

// Global, because there is one standard error, as with spdlog's default logger.
std::atomic<LogFormat> line_format{LogFormat::kText};
std::atomic<uint64_t> lines_dropped{0};           // by the rate limit
std::atomic<LogOutput*> standard_error{nullptr};  // never destroyed: any thread may log until exit

// Formats lines for standard error.
class OutputSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit OutputSink(LogOutput& output) : output_(output) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    output_.Write({line.data(), line.size()});
  }
  void flush_() override {}

  LogOutput& output_;
};

// The rate limit of lines about requests at level info.
struct RequestLines {
  Mutex mutex;
  LogRateLimit limit GUARDED_BY(mutex){kRequestLinesMax};
};

RequestLines& TheRequestLines() {
  static RequestLines lines;
  return lines;
}

LogRateLimit::Verdict CheckRequestLine() {
  RequestLines& lines = TheRequestLines();
  MutexLock lock(lines.mutex);
  return lines.limit.Check(SteadyClock().Now());
}

uint64_t TakeDroppedLines() {
  RequestLines& lines = TheRequestLines();
  MutexLock lock(lines.mutex);
  return lines.limit.TakeDropped(SteadyClock().Now());
}

using LogParts = std::initializer_list<std::initializer_list<LogField>>;

std::string TextOf(const LogParts& parts) {
  const LogFormat format = line_format;
  std::string text;
  for (const std::initializer_list<LogField>& fields : parts) {
    for (const LogField& field : fields) AppendLogField(field, format, text);
  }
  return text;
}

void Write(LogLevel level, const LogParts& parts) {
  spdlog::default_logger_raw()->log(Level(level), spdlog::string_view_t(TextOf(parts)));
}

std::string DroppedText(uint64_t lines, std::string_view reason) {
  return TextOf({{{"event", "log_dropped"}, {"lines", lines}, {"reason", reason}}});
}

// Reports lines that the rate limit dropped.
void WriteDropped(uint64_t lines) {
  if (lines == 0) return;
  const std::string text = DroppedText(lines, "rate_limit");
  spdlog::default_logger_raw()->log(spdlog::level::warn, spdlog::string_view_t(text));
}

// Formats the line that reports lines that standard error did not accept.
std::string OutputDroppedLine(const std::string& pattern, uint64_t lines) {
  const std::string text = DroppedText(lines, "output_stalled");
  spdlog::memory_buf_t line;
  spdlog::pattern_formatter(pattern).format({"penstock", spdlog::level::warn, text}, line);
  return {line.data(), line.size()};
}

void FlushAtExit() { standard_error.load()->Flush(kFlushAtExit); }

bool Wanted(LogLevel level) { return spdlog::default_logger_raw()->should_log(Level(level)); }

// Escapes "%", which has a meaning in spdlog's patterns.
std::string PatternOf(const LogField& field, LogFormat format) {
  std::string text;
  AppendLogField(field, format, text);
  std::string pattern;
  for (const char c : text) pattern.append(c == '%' ? 2 : 1, c);
  return pattern;
}

}  // namespace

LogLevel ParseLogLevel(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

LogFormat ParseLogFormat(std::string_view name) {
  return name == "json" ? LogFormat::kJson : LogFormat::kText;
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

LogLevel SetLogLevel(LogLevel min) {
  const LogLevel before = CurrentLogLevel();
  spdlog::default_logger_raw()->set_level(Level(min));
  return before;
}

// Each scrape calls it, so that a process that has become idle reports dropped lines too.
uint64_t LogLinesDropped() {
  WriteDropped(TakeDroppedLines());
  const LogOutput* output = standard_error;
  return lines_dropped + (output == nullptr ? 0 : output->dropped());
}

void StartLogging(const LogOptions& options) {
  const std::string component = PatternOf({"component", options.component}, options.format);
  const char* const time = "%Y-%m-%dT%H:%M:%S.%f%z";
  const std::string pattern =
      options.format == LogFormat::kJson
          ? fmt::format(R"({{"time":"{}","level":"%l"{}%v}})", time, component)
          : fmt::format("time={} level=%l{}%v", time, component);
  line_format = options.format;
  auto* const output = new LogOutput(
      {.dropped_line = [pattern](uint64_t lines) { return OutputDroppedLine(pattern, lines); }});
  standard_error = output;
  auto logger = std::make_shared<spdlog::logger>("penstock", std::make_shared<OutputSink>(*output));
  logger->set_pattern(pattern);
  logger->set_level(Level(options.min));
  spdlog::set_default_logger(std::move(logger));
  std::atexit(FlushAtExit);
}

void Log(LogLevel level, LogEvent event, std::initializer_list<LogField> fields) {
  if (!Wanted(level)) return;
  WriteDropped(TakeDroppedLines());
  Write(level, {{{"event", event.name()}}, fields});
}

void LogRequest(LogLevel level, const RequestTag& tag, LogEvent event,
                std::initializer_list<LogField> fields) {
  if (!Wanted(level)) return;
  if (level == LogLevel::kInfo && !Wanted(LogLevel::kDebug)) {
    const LogRateLimit::Verdict verdict = CheckRequestLine();
    WriteDropped(verdict.dropped_before);
    if (!verdict.write) {
      ++lines_dropped;
      return;
    }
  }
  if (tag.request.empty()) {  // another worker's request: only its trace is known
    return Write(level, {{{"trace", tag.trace}, {"event", event.name()}}, fields});
  }
  Write(level, {{{"request", tag.request}, {"trace", tag.trace}, {"event", event.name()}}, fields});
}

}  // namespace penstock
