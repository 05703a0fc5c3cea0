#pragma once

#include <cstdint>

namespace penstock {

// The limits of numbers in config.json that several readers share: what kernels and memory can
// handle.
inline constexpr int64_t kMaxIntermediate = int64_t{1} << 20;  // width of an MLP or an expert
inline constexpr int64_t kMaxPosition = int64_t{1} << 24;      // tokens; also of a window
inline constexpr double kMaxTheta = 1e12;                      // base of RoPE

}  // namespace penstock
