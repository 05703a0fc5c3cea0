#pragma once

#include <string_view>
#include <vector>

namespace penstock {

// The instruction sets that the CPU kernels are compiled for. Two machines with equal Isa produce
// equal bits.
enum class Isa {
  kPortable,    // the compiler's baseline; f32 arithmetic
  kAvx2,        // AVX2, FMA; f32 arithmetic
  kAvx512,      // AVX-512 F/BW/DQ/VL; f32 arithmetic
  kAvx512Bf16,  // also bf16 dot products: activations are rounded to bf16
};

std::string_view IsaName(Isa isa);
bool IsaSupported(Isa isa);
// The instruction sets that this machine supports, in ascending order.
std::vector<Isa> SupportedIsas();
// The fastest instruction set for matrix products. Depends on the CPU model only, never on a
// measurement, so that equal machines choose alike.
Isa BestIsa();

// The instruction set that kernels use: BestIsa(), or the forced one while a ScopedIsa exists.
Isa ActiveIsa();

// Forces an Isa for all threads during its lifetime. For tests and benchmarks; no kernel may run
// while it is created or destroyed.
class ScopedIsa {
 public:
  explicit ScopedIsa(Isa isa);  // CHECKs that the machine supports it
  ~ScopedIsa();
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;

 private:
  int previous_;  // the Isa that was forced before; negative for none
};

}  // namespace penstock
