// Compiled with -mavx2; reached only where the machine has it.

#define PENSTOCK_QUANT_LANES 8
#include "kernels/cpu/kv_quant_ops.h"

namespace penstock::simd {

extern const KvQuantOps kAvx2KvQuant = MakeKvQuantOps();

}  // namespace penstock::simd
