#pragma once

#include "kernels/buffer.h"
#include "kernels/device.h"
#include "kernels/isa.h"

namespace penstock {

// What the machine can do at best, by loops that do nothing else on all threads of an Exec.
class MachineLimits {
 public:
  // Takes 1.125 GiB, more than any cache holds.
  explicit MachineLimits(const Exec& exec);

  // Bytes per second of reading, the best of some access patterns in one pass each.
  double ReadBandwidth() const;
  // Floating-point operations per second of dot products of bf16 numbers in registers: vdpbf16ps
  // where there is one, else what the best Isa multiplies with.
  double DotProductPeak() const;
  // The same of f32 multiply-adds, by the widest there is.
  double MultiplyAddPeak() const;

 private:
  double Peak(Isa isa) const;

  const Exec exec_;
  const Buffer memory_;
};

}  // namespace penstock
