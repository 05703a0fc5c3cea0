// Compiled with -mavx2; called only on machines that support AVX2.

#define PENSTOCK_QUANT_LANES 8
#include "kernels/cpu/kv_quant_ops.h"

namespace penstock::simd {

extern const KvQuantOps kAvx2KvQuant = MakeKvQuantOps();

}  // namespace penstock::simd
