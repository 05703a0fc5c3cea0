#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// The hardware of a worker, as far as a plan needs it.
struct Hardware {
  std::string name;
  uint64_t memory_bytes = 0;
  double read_bytes_per_s = 0;  // of its memory
  double flops_per_s = 0;       // dense, in the arithmetic that kernels use
  // The share of the two limits above that the forward pass reaches.
  double decode_efficiency = 0.8;
  double prefill_efficiency = 0.8;
  std::string source;  // where these figures come from
};

// Accelerators by their data sheets, and by measurements where there are some.
std::span<const Hardware> KnownHardware();
// By name, whatever its case; NOT_FOUND lists what there is.
absl::StatusOr<Hardware> FindHardware(std::string_view name);

}  // namespace penstock
