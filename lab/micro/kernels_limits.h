#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/device.h"

namespace penstock {

// The best rates of the machine, by loops that do nothing else on all threads of an Exec.
class MachineLimits {
 public:
  using Memory = std::vector<std::span<const std::byte>>;

  // `memory` is what to read: written before, larger than any cache, and it outlives the object.
  // The placement of memory changes the rate by 5 % and more: a kernel is compared with reading
  // the same memory. Tries how best to walk through it, which takes some
  // dozen passes.
  MachineLimits(const Exec& exec, const Memory& memory);

  // Bytes per second of one pass of reading.
  double ReadBandwidth() const;
  // Floating-point operations per second of dot products of bf16 numbers in registers: vdpbf16ps
  // where there is one, else what the best Isa multiplies with.
  double DotProductPeak() const;
  // The same of f32 multiply-adds, by the widest there is.
  double MultiplyAddPeak() const;

  // The same of dot products of 16-bit integers, by the widest instruction that quantised weights
  // are multiplied with.
  double IntegerPeak() const;

 private:
  double RateOf(const std::function<double(int64_t rounds)>& operations) const;
  double Peak(Isa isa) const;
  double ReadBandwidth(int walk) const;
  int BestWalk() const;

  const Exec exec_;
  const Memory pieces_;
  const int walk_;
};

}  // namespace penstock
