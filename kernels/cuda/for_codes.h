#pragma once

#include "kernels/cuda/kv_planes.h"

namespace penstock::cuda {

// Calls run.template operator()<keys, values, head_dim>() for the codes of `kv`. Returns false,
// without a call, if no kernel supports them.
template <int kDim, class Run>
bool ForCodes(const KvPlanes& kv, const Run& run) {
  using enum KvCode;
  const KvCode keys = kv.keys.code, values = kv.values.code;
  if (keys == kBf16 && values == kBf16) return run.template operator()<kBf16, kBf16, kDim>(), true;
  if (keys == kF8 && values == kF8) return run.template operator()<kF8, kF8, kDim>(), true;
  if (keys == kI8 && values == kI8) return run.template operator()<kI8, kI8, kDim>(), true;
  if (keys == kI4 && values == kI4) return run.template operator()<kI4, kI4, kDim>(), true;
  if (keys == kI8 && values == kI4) return run.template operator()<kI8, kI4, kDim>(), true;
  if (keys == kL3 && values == kL3) return run.template operator()<kL3, kL3, kDim>(), true;
  if (keys == kL3 && values == kL2) return run.template operator()<kL3, kL2, kDim>(), true;
  return false;
}
// ForCodes with the head_dim of `kv`.
template <class Run>
bool ForShape(const KvPlanes& kv, const Run& run) {
  if (kv.head_dim == 64) return ForCodes<64>(kv, run);
  if (kv.head_dim == 128) return ForCodes<128>(kv, run);
  return false;
}

}  // namespace penstock::cuda
