#pragma once

#include "kernels/buffer.h"
#include "kernels/device.h"
#include "kernels/isa.h"

namespace penstock {

// What the machine can do at best, by loops that do nothing else on all threads of an Exec.
class MachineLimits {
 public:
  // `bytes` of memory to read, rounded up to 64 pieces; more than any cache holds. Tries how best
  // to walk through it, which takes some dozen passes.
  MachineLimits(const Exec& exec, size_t bytes);

  // Bytes per second of one pass of reading.
  double ReadBandwidth() const;
  // Floating-point operations per second of dot products of bf16 numbers in registers: vdpbf16ps
  // where there is one, else what the best Isa multiplies with.
  double DotProductPeak() const;
  // The same of f32 multiply-adds, by the widest there is.
  double MultiplyAddPeak() const;

 public:
  double Peak(Isa isa) const;
  double ReadBandwidth(int walk) const;
  int BestWalk() const;

  const Exec exec_;
  const size_t piece_bytes_;
  const Buffer memory_;
  const int walk_;
};

}  // namespace penstock
