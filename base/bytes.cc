#include "base/bytes.h"

#include <array>
#include <charconv>
#include <cmath>

namespace penstock {
namespace {

struct Unit {
  std::string_view name;
  uint64_t bytes;
};

constexpr std::array<Unit, 13> kUnits = {{{"B", 1},
                                          {"KiB", uint64_t{1} << 10},
                                          {"MiB", uint64_t{1} << 20},
                                          {"GiB", uint64_t{1} << 30},
                                          {"TiB", uint64_t{1} << 40},
                                          {"KB", 1'000},
                                          {"MB", 1'000'000},
                                          {"GB", 1'000'000'000},
                                          {"TB", 1'000'000'000'000},
                                          // Kubernetes' names
                                          {"Ki", uint64_t{1} << 10},
                                          {"Mi", uint64_t{1} << 20},
                                          {"Gi", uint64_t{1} << 30},
                                          {"Ti", uint64_t{1} << 40}}};
constexpr size_t kBinaryUnits = 5;  // the first units, in ascending order

}  // namespace

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || number < 0) {
    return InvalidArgument("is not a size; write e.g. 512MiB or 1.5GiB");
  }
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit.empty()) {
    const std::string_view digits = text.substr(0, text.find(' '));
    return InvalidArgument("has no unit; write {}MiB, {}GiB or {}B", digits, digits, digits);
  }
  for (const Unit& known : kUnits) {
    if (known.name != unit) continue;
    const double bytes = std::round(number * static_cast<double>(known.bytes));
    if (bytes >= std::ldexp(1.0, 63))
      return InvalidArgument("is 2^63 bytes or more; the limit is below that");
    return static_cast<uint64_t>(bytes);
  }
  return InvalidArgument(
      "has the unknown unit {}; allowed are B, KiB, MiB, GiB, TiB (or Ki, Mi, Gi, Ti), KB, MB, GB "
      "and TB",
      unit);
}

std::string FormatBytes(uint64_t bytes) {
  size_t unit = 0;
  while (unit + 1 < kBinaryUnits && bytes >= kUnits[unit + 1].bytes) ++unit;
  const double value = static_cast<double>(bytes) / static_cast<double>(kUnits[unit].bytes);
  // One decimal unless the value is whole or large.
  const bool whole = value == std::floor(value) || value >= 100;
  return whole ? fmt::format("{:.0f} {}", value, kUnits[unit].name)
               : fmt::format("{:.1f} {}", value, kUnits[unit].name);
}

}  // namespace penstock
