#pragma once

#include <cstdint>

#include "base/clock.h"

namespace penstock::world {

// Chance from a seed: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  uint64_t Below(uint64_t limit) { return Next() % limit; }
  bool Chance(uint64_t of_1000) { return Below(1000) < of_1000; }
  Duration Between(Duration min, Duration max) {
    return min + Duration(Below(static_cast<uint64_t>((max - min).count()) + 1));
  }

 private:
  uint64_t state_;
};

}  // namespace penstock::world
