#include "lab/load/draw.h"

#include <cmath>
#include <numbers>

namespace penstock {

uint32_t Draw::Between(uint32_t min, uint32_t max) {
  return min + static_cast<uint32_t>(random_() % (uint64_t{max} - min + 1));
}

double Draw::Normal() {  // Box and Muller
  const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
  return radius * std::cos(2 * std::numbers::pi * Uniform());
}

// Marsaglia and Tsang, "A simple method for generating gamma variables", 2000.
double Draw::Gamma(double shape) {
  if (shape < 1) {
    const double boosted = Gamma(shape + 1);
    return boosted * std::pow(1 - Uniform(), 1 / shape);
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = Normal();
    const double v = std::pow(1 + c * x, 3);
    if (v <= 0) continue;
    if (std::log(1 - Uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

uint64_t Mix(uint64_t seed, uint64_t id, uint64_t index) {
  uint64_t z = seed * 0x9E3779B97F4A7C15 + id * 0xBF58476D1CE4E5B9 + index * 0x94D049BB133111EB +
               0x2545F4914F6CDD1D;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace penstock
