#include "kernels/cpu/kv_quant.h"

#include "kernels/cpu/isa.h"

namespace penstock {
namespace simd {
extern const KvQuantOps kPortableKvQuant;
#if defined(__x86_64__)
extern const KvQuantOps kAvx2KvQuant;
extern const KvQuantOps kAvx512KvQuant;
#endif
}  // namespace simd

const KvQuantOps& KvQuantOpsFor(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return simd::kAvx2KvQuant;
  if (isa == Isa::kAvx512 || isa == Isa::kAvx512Bf16) return simd::kAvx512KvQuant;
#endif
  static_cast<void>(isa);
  return simd::kPortableKvQuant;
}

const KvQuantOps& ActiveKvQuantOps() { return KvQuantOpsFor(ActiveIsa()); }

}  // namespace penstock
