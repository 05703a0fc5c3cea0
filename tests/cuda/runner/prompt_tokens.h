#pragma once

#include <cstdint>
#include <vector>

namespace penstock {

// A prompt of ids below 101.
inline std::vector<uint32_t> Prompt(int size, uint32_t seed) {
  std::vector<uint32_t> tokens;
  for (int i = 0; i < size; ++i) {
    const auto at = static_cast<uint32_t>(i);
    tokens.push_back((seed * 31 + at * at * 7 + at) % 101);
  }
  return tokens;
}

}  // namespace penstock
