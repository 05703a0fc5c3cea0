#pragma once

#include "kernels/buffer.h"
#include "kernels/device.h"

namespace penstock {

// What the machine can do at best, by loops that do nothing else on all threads of an Exec.
class MachineLimits {
 public:
  // Takes 1.125 GiB, more than any cache holds.
  explicit MachineLimits(const Exec& exec);

  // Bytes per second of reading, the best of some access patterns in one pass each.
  double ReadBandwidth() const;
  // Floating-point operations per second of products of bf16 numbers in registers: of vdpbf16ps, or
  // of f32 multiply-adds where the kernels use those because they are faster or alone there.
  double DotProductPeak() const;

 private:
  const Exec exec_;
  const Buffer memory_;
};

}  // namespace penstock
