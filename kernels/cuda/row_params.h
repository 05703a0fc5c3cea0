#pragma once

#include <cstdint>

namespace penstock::cuda {

// A matrix product as it comes: the sum over `slices`, in ascending order, of [rows][width].
struct Product {
  const float* data = nullptr;
  int64_t slice_stride = 0;  // elements
  int32_t slices = 0;
  int32_t width = 0;
  const float* bias = nullptr;  // [width], or null
};

}  // namespace penstock::cuda
