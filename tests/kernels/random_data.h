#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cpu/isa.h"

namespace penstock {

// Deterministic test data.
class RandomData {
 public:
  explicit RandomData(uint64_t seed) : engine_(seed) {}

  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  std::vector<float> Floats(int64_t count, float deviation = 1.0f) {
    std::normal_distribution<float> normal(0.0f, deviation);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(engine_);
    return values;
  }
  std::vector<Bf16> Bf16s(int64_t count, float deviation = 1.0f) {
    std::vector<Bf16> values;
    for (const float value : Floats(count, deviation)) values.push_back(ToBf16(value));
    return values;
  }

 private:
  std::mt19937_64 engine_;
};

// An activation as a product on `isa` takes it.
inline double Activation(Isa isa, float value) {
  return isa == Isa::kAvx512Bf16 ? ToFloat(ToBf16(value)) : value;
}

// GoogleTest names of TEST_P instances.
inline std::string TestName(const testing::TestParamInfo<Isa>& instance) {
  return std::string(IsaName(instance.param));
}

}  // namespace penstock
