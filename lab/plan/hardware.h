#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// One device of a worker, as far as a plan needs it: a GPU, or a whole machine without one.
struct Hardware {
  std::string name;
  bool gpu = true;
  uint64_t memory_bytes = 0;
  uint64_t reserve_bytes = 0;   // that a worker leaves free beside weights and blocks
  double read_bytes_per_s = 0;  // of its memory
  double flops_per_s = 0;       // dense, in the arithmetic that kernels use
  // Between one device and the others of its machine, in each direction, for tensor parallelism.
  double interconnect_bytes_per_s = 0;
  // The share of the limits above that the forward pass reaches; that of the interconnect is
  // decode_efficiency, too.
  double decode_efficiency = 0.8;
  double prefill_efficiency = 0.8;
  std::string source;        // where these figures come from
  std::string interconnect;  // its kind: "NVLink 4"
};

// Accelerators by their data sheets, and by measurements where there are some.
std::span<const Hardware> KnownHardware();
// By name, whatever its case; NOT_FOUND lists what there is.
absl::StatusOr<Hardware> FindHardware(std::string_view name);

}  // namespace penstock
