#pragma once

#include <span>
#include <string>

namespace penstock {

// One measured figure. `limit` is the machine's own or arithmetic's, in the same unit, and
// `fraction` how much of it was reached.
struct BenchRow {
  std::string name;
  double value = 0;
  std::string unit;
  double limit = 0;
  double fraction = 0;
};

// CPU model, cores and the instruction set that kernels use, in one line.
std::string MachineName();

// {"bench": ..., "machine": ..., "rows": [{"name", "value", "unit", "limit", "fraction"}]}
std::string ToJson(const std::string& bench, const std::string& machine,
                   std::span<const BenchRow> rows);
// The same as an aligned table.
std::string ToText(const std::string& bench, const std::string& machine,
                   std::span<const BenchRow> rows);

}  // namespace penstock
