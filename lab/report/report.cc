#include "lab/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/cpu/isa.h"

namespace penstock {
namespace {

// "model name : AMD EPYC" of /proc/cpuinfo; empty where there is none.
std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(':');
    return colon == std::string::npos ? "" : line.substr(std::min(line.size(), colon + 2));
  }
  return "";
}

}  // namespace

std::string MachineName() {
  return fmt::format("{}, {} CPUs, {}", CpuModel(), std::thread::hardware_concurrency(),
                     IsaName(ActiveIsa()));
}

std::string ToJson(const std::string& bench, const std::string& machine,
                   std::span<const BenchRow> rows) {
  nlohmann::ordered_json json = {
      {"bench", bench}, {"machine", machine}, {"rows", nlohmann::ordered_json::array()}};
  for (const BenchRow& row : rows) {
    json["rows"].push_back({{"name", row.name},
                            {"value", row.value},
                            {"unit", row.unit},
                            {"limit", row.limit},
                            {"fraction", row.fraction}});
  }
  return json.dump();
}

std::string ToText(const std::string& bench, const std::string& machine,
                   std::span<const BenchRow> rows) {
  size_t width = 4;
  for (const BenchRow& row : rows) width = std::max(width, row.name.size());
  std::string text = fmt::format("{} on {}\n", bench, machine);
  for (const BenchRow& row : rows) {
    text += fmt::format("  {:<{}}  {:>10.4g} {:<12} limit {:>10.4g}  fraction {:.3f}\n", row.name,
                        width, row.value, row.unit, row.limit, row.fraction);
  }
  return text;
}

}  // namespace penstock
