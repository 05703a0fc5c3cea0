#pragma once

namespace penstock {

// The best rates of this machine with all its cores, measured now (about a second, 1.2 GiB).
struct MachineRates {
  double read_bytes_per_s = 0;
  double flops_per_s = 0;  // f32 multiply-adds, which the kernels' matrix products are made of
};

MachineRates MeasureMachine();

}  // namespace penstock
