#include "lab/plan/hardware.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace penstock {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
// As the workers' own (worker/model/gpu_host_cuda.cc).
constexpr uint64_t kReserveBytes = uint64_t{256} << 20;
constexpr char kDataSheet[] = "data sheet; efficiency 0.8 is assumed";

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

// Bandwidths of data sheets are sums of both directions; these are of one.
struct Interconnect {
  const char* name;
  double gigabytes_per_s;
};
constexpr Interconnect kNvLink3{"NVLink 3", 300}, kNvLink4{"NVLink 4", 450},
    kNvLink5{"NVLink 5", 900}, kPcie4{"PCIe 4.0 x16", 32}, kPcie5{"PCIe 5.0 x16", 64};

Hardware Sheet(const char* name, uint64_t gib, double terabytes_per_s, double teraflops,
               const Interconnect& interconnect) {
  return {.name = name,
          .memory_bytes = gib * kGiB,
          .reserve_bytes = kReserveBytes,
          .read_bytes_per_s = terabytes_per_s * 1e12,
          .flops_per_s = teraflops * 1e12,
          .interconnect_bytes_per_s = interconnect.gigabytes_per_s * 1e9,
          .source = kDataSheet,
          .interconnect = interconnect.name};
}

std::vector<Hardware> MakeKnown() {
  std::vector<Hardware> known = {
      Sheet("a100-40g", 40, 1.555, 312, kNvLink3), Sheet("a100-80g", 80, 2.039, 312, kNvLink3),
      Sheet("b200", 180, 8.0, 2250, kNvLink5),     Sheet("h100-pcie", 80, 2.0, 756, kPcie5),
      Sheet("h100-sxm", 80, 3.35, 989, kNvLink4),  Sheet("h20", 96, 4.0, 148, kNvLink4),
      Sheet("l4", 24, 0.3, 121, kPcie4),           Sheet("l40s", 48, 0.864, 362, kPcie4),
  };
  // Copy bandwidth and bf16 GEMM rate that such a board was measured to give; 4.8 and 989 by its
  // data sheet. Of 141 GB some belong to the driver.
  Hardware h200 = Sheet("h200", 139, 4.3, 790, kNvLink4);
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
