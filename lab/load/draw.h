#pragma once

#include <cstdint>
#include <random>

namespace penstock {

// Random numbers that are the same on every machine, which std::*_distribution are not.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  double Uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }  // [0, 1)
  // Uniform in [min, max].
  uint32_t Between(uint32_t min, uint32_t max);
  double Normal();
  // Mean `shape`.
  double Gamma(double shape);

 private:
  std::mt19937_64 random_;
};

// The splitmix64 finaliser over three numbers: the same anywhere, without state.
uint64_t Mix(uint64_t seed, uint64_t id, uint64_t index);

}  // namespace penstock
