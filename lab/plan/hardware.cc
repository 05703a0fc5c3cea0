#include "lab/plan/hardware.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace penstock {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr char kDataSheet[] = "data sheet; efficiency 0.8 is assumed";

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

Hardware Sheet(const char* name, uint64_t gib, double terabytes_per_s, double teraflops) {
  return {.name = name,
          .memory_bytes = gib * kGiB,
          .read_bytes_per_s = terabytes_per_s * 1e12,
          .flops_per_s = teraflops * 1e12,
          .source = kDataSheet};
}

std::vector<Hardware> MakeKnown() {
  std::vector<Hardware> known = {
      Sheet("a100-40g", 40, 1.555, 312), Sheet("a100-80g", 80, 2.039, 312),
      Sheet("b200", 180, 8.0, 2250),     Sheet("h100-pcie", 80, 2.0, 756),
      Sheet("h100-sxm", 80, 3.35, 989),  Sheet("h20", 96, 4.0, 148),
      Sheet("l4", 24, 0.3, 121),         Sheet("l40s", 48, 0.864, 362),
  };
  // Copy bandwidth and bf16 GEMM rate that such a board was measured to give; 4.8 and 989 by its
  // data sheet. Of 141 GB some belong to the driver.
  Hardware h200 = Sheet("h200", 139, 4.3, 790);
  h200.source = "measured copy and GEMM rates; efficiency 0.8 is assumed";
  known.push_back(h200);
  std::sort(known.begin(), known.end(),
            [](const Hardware& a, const Hardware& b) { return a.name < b.name; });
  return known;
}

}  // namespace

std::span<const Hardware> KnownHardware() {
  static const std::vector<Hardware> known = MakeKnown();
  return known;
}

absl::StatusOr<Hardware> FindHardware(std::string_view name) {
  const std::string wanted = Lower(name);
  std::string names;
  for (const Hardware& hardware : KnownHardware()) {
    if (hardware.name == wanted) return hardware;
    names += ", " + hardware.name;
  }
  return NotFound("--hardware={}: known are cpu (this machine, measured now){}", name, names);
}

}  // namespace penstock
