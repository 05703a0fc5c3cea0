#pragma once

#include <string_view>
#include <vector>

namespace penstock {

// The instruction sets that CPU kernels are built for. Two machines of equal Isa give equal bits.
enum class Isa {
  kPortable,    // what the compiler's baseline has; f32 arithmetic
  kAvx2,        // AVX2, FMA; f32 arithmetic
  kAvx512,      // AVX-512 F/BW/DQ/VL; f32 arithmetic
  kAvx512Bf16,  // also bf16 dot products: activations are rounded to bf16 before a product
};

std::string_view IsaName(Isa isa);
bool IsaSupported(Isa isa);
// Those that this machine can run, in ascending order.
std::vector<Isa> SupportedIsas();
// The fastest for matrix products. Depends on the CPU's model alone, never on a measurement.
Isa BestIsa();

// What kernels use now: BestIsa() unless a ScopedIsa lives.
Isa ActiveIsa();

// Forces an Isa for its lifetime, in all threads. For tests and benches, while no kernel runs.
class ScopedIsa {
 public:
  explicit ScopedIsa(Isa isa);  // CHECKs that it is supported
  ~ScopedIsa();
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;

 private:
  int previous_;  // of the forced one, negative for none
};

}  // namespace penstock
