#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "base/log/log_level.h"
#include "base/metrics/metrics.h"

namespace penstock {
namespace {

double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double OpenDescriptors() {
  std::error_code error;
  double open = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; it != end;
       it.increment(error)) {
    ++open;
  }
  return open;
}

double DescriptorsMax() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<double>(limit.rlim_cur);
}

double ProcessorSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double StartUnixSeconds() {
  using std::chrono::duration;
  return duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

void AddProcessMetrics(MetricsRegistry& registry, const std::string& role) {
  registry
      .Gauge("penstock_build_info", "Always 1; the labels identify the build.",
             {{"version", PENSTOCK_VERSION}, {"role", role}})
      .Set(1);
  registry.Gauge("process_start_time_seconds", "Start time of the process, Unix time.")
      .Set(StartUnixSeconds());
  prometheus::Gauge& resident =
      registry.Gauge("process_resident_memory_bytes", "Resident memory of the process.");
  prometheus::Gauge& open = registry.Gauge("process_open_fds", "Open file descriptors.");
  prometheus::Gauge& max = registry.Gauge("process_max_fds", "Limit of open file descriptors.");
  prometheus::Counter& seconds =
      registry.Counter("process_cpu_seconds_total", "CPU time of the process, user and system.");
  prometheus::Counter& dropped = registry.Counter(
      "penstock_log_dropped_total",
      "Log lines dropped by the rate limit of requests or by a standard error that stalls.");
  registry.BeforeScrape([&resident, &open, &max, &seconds, &dropped] {
    resident.Set(ResidentBytes());
    open.Set(OpenDescriptors());
    max.Set(DescriptorsMax());
    RaiseTo(seconds, ProcessorSeconds());
    RaiseTo(dropped, LogLinesDropped());
  });
}

}  // namespace penstock
