#include "tests/cuda/gpu/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

namespace penstock::cuda {
namespace {

// JSON knows no NaN.
std::string Number(double x) {
  std::ostringstream out;
  out.precision(6);
  if (std::isfinite(x)) {
    out << x;
  } else {
    out << "null";
  }
  return out.str();
}

}  // namespace

bool Report::passed() const {
  return std::ranges::all_of(checks, [](const Check& c) { return c.passed(); });
}

std::string Report::Json() const {
  std::ostringstream out;
  out << "{\"device\": \"" << device << "\", \"checks\": [";
  const char* separator = "";
  for (const Check& c : checks) {
    out << separator << "\n {\"name\": \"" << c.name << "\", \"value\": " << Number(c.value)
        << ", \"limit\": " << Number(c.limit) << ", \"passed\": " << (c.passed() ? "true" : "false")
        << "}";
    separator = ",";
  }
  out << "],\n \"measurements\": [";
  separator = "";
  for (const Measurement& m : measurements) {
    out << separator << "\n {\"name\": \"" << m.name << "\", \"median_us\": " << Number(m.median_us)
        << ", \"rate\": " << Number(m.rate) << ", \"unit\": \"" << m.unit
        << "\", \"ceiling\": " << Number(m.ceiling)
        << ", \"fraction\": " << (m.ceiling > 0 ? Number(m.rate / m.ceiling) : "null")
        << ", \"goal\": " << Number(m.goal) << "}";
    separator = ",";
  }
  out << "],\n \"not_run\": [";
  separator = "";
  for (const std::string& what : not_run) {
    out << separator << "\"" << what << "\"";
    separator = ", ";
  }
  out << "]}\n";
  return out.str();
}

void Report::PrintTable() const {
  for (const Check& c : checks) {
    if (!c.passed())
      std::printf("FAILED  %-44s %.3g, limit %.3g\n", c.name.c_str(), c.value, c.limit);
  }
  for (const std::string& what : not_run) std::printf("NOT RUN %s\n", what.c_str());
  const auto failed = std::ranges::count_if(checks, [](const Check& c) { return !c.passed(); });
  std::printf("%-44s %10s %16s %9s %6s\n", device.c_str(), "us", "rate", "fraction", "goal");
  for (const Measurement& m : measurements) {
    std::printf("%-44s %10.1f %8.1f %-7s ", m.name.c_str(), m.median_us, m.rate, m.unit.c_str());
    if (m.ceiling > 0) std::printf("%9.3f ", m.rate / m.ceiling);
    if (m.goal > 0) std::printf("%6.2f", m.goal);
    std::printf("\n");
  }
  std::printf("%zu checks, %td failed\n", checks.size(), failed);
}

}  // namespace penstock::cuda
