#pragma once

#include "kernels/library/gemm.h"

namespace penstock::cuda::library {

// True if the products can use a weight of this shape: its rows and those of the result begin at
// multiples of 16 bytes.
bool SupportsGemm(const Weight& weight);

struct GemmChoice {
  GemmTile tile = GemmTile::k128x128;
  int32_t swizzle = 1;
};
// Chooses the fastest tile. The bits of the product do not depend on it.
GemmChoice ChooseGemm(const Weight& weight, int32_t rows, int32_t processors);

}  // namespace penstock::cuda::library
