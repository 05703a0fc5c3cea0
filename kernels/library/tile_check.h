#pragma once

#include <functional>

#include "base/status.h"
#include "kernels/library/gemm.h"

namespace penstock::cuda::library {

// Computes a product with a tile.
using TileRun = std::function<void(GemmTile, const GemmCall&)>;

// Compares a product by every tile with the host's in double precision, and the tiles with each
// other to the bit, on the selected GPU. Returns FAILED_PRECONDITION that names the first tile that
// differs. A model that is small enough to be checked as a whole does not use the larger tiles.
absl::Status CheckTiles(const TileRun& run, int32_t processors, void* stream);

}  // namespace penstock::cuda::library
