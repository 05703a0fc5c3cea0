#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/bf16.h"
#include "tests/cuda/cases/device_array.h"

namespace penstock::cuda {

// Device memory of normal bf16 values; as codes and scales they serve as well as others.
class RandomMemory {
 public:
  explicit RandomMemory(size_t bytes) : array_(bytes) {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    std::vector<Bf16> values(std::min<size_t>(bytes / 2, size_t{4} << 20));
    for (Bf16& value : values) value = ToBf16(normal(random));
    const size_t piece = values.size() * 2;
    CopyToDevice(array_.data(), values.data(), piece, nullptr);
    for (size_t at = piece; at < bytes; at += piece) {
      CopyOnDevice(array_.data() + at, array_.data(), std::min(piece, bytes - at), nullptr);
    }
    Synchronize(nullptr);
  }
  std::byte* data() const { return array_.data(); }
  Bf16* bf16() const { return reinterpret_cast<Bf16*>(array_.data()); }

 private:
  DeviceArray<std::byte> array_;
};

}  // namespace penstock::cuda
