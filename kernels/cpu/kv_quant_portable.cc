// Compiled for the compiler's baseline instruction set.

#define PENSTOCK_QUANT_LANES 4
#include "kernels/cpu/kv_quant_ops.h"

namespace penstock::simd {

extern const KvQuantOps kPortableKvQuant = MakeKvQuantOps();

}  // namespace penstock::simd
