// Compiled with AVX-512 F/BW/DQ/VL; called only on machines that support all of them.

#define PENSTOCK_QUANT_LANES 16
#include "kernels/cpu/kv_quant_ops.h"

namespace penstock::simd {

extern const KvQuantOps kAvx512KvQuant = MakeKvQuantOps();

}  // namespace penstock::simd
