#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa.h"

namespace penstock {
namespace simd {
extern const SimdOps kPortableOps;
#if defined(__x86_64__)
extern const SimdOps kAvx2Ops;
extern const SimdOps kAvx512Ops;
extern const SimdOps kAvx512Bf16Ops;
#endif
}  // namespace simd

const SimdOps& SimdFor(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return simd::kAvx2Ops;
  if (isa == Isa::kAvx512) return simd::kAvx512Ops;
  if (isa == Isa::kAvx512Bf16) return simd::kAvx512Bf16Ops;
#endif
  static_cast<void>(isa);
  return simd::kPortableOps;
}

const SimdOps& ActiveSimd() { return SimdFor(ActiveIsa()); }

}  // namespace penstock
