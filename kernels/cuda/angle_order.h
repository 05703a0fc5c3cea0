#pragma once

#include <cstdint>

namespace penstock::cuda {

// The order of the angles of positions in device memory (PositionAngles of kernels/attention.h has
// the CPU's): a lane's operands of the mma of attention lie together, for each 8 positions and each
// 32 elements, which are two of its steps. So a warp reads 512 bytes in one go.
constexpr int kAnglePositions = 8;
constexpr int kAngleDims = 32;

// The place of an element of a position; `head_dim` is a multiple of kAngleDims. Elements are the
// cosines, the sines, and ones for what is not rotated.
constexpr int64_t AngleAt(int64_t position, int32_t element, int32_t head_dim) {
  const int64_t tile = position / kAnglePositions * (head_dim / kAngleDims) + element / kAngleDims;
  const int32_t in_step = element % 16, step = element % kAngleDims / 16;
  const auto lane = static_cast<int32_t>(position % kAnglePositions) * 4 + in_step % 8 / 2;
  return (tile * 32 + lane) * 8 + step * 4 + in_step / 8 * 2 + in_step % 2;
}

// Elements of the memory of `positions` positions. Attention reads whole tiles of 64.
constexpr int64_t AngleElements(int64_t positions, int32_t head_dim) {
  return (positions + 63) / 64 * 64 * head_dim;
}

}  // namespace penstock::cuda
