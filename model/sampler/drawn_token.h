#pragma once

#include <cstdint>
#include <limits>

namespace penstock {

// How one token is drawn from a row of logits (token_draw.h); the knobs are SamplingParams'.
struct DrawSpec {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;
  int32_t top_k = 0;  // 0: off
  float min_p = 0.0f;
  uint64_t random = 0;  // uniform
};

// What was drawn, and what its log-probability follows from.
struct DrawnToken {
  uint32_t id = 0;
  float logit = 0;                                      // +infinity capped to the largest float
  float max = -std::numeric_limits<float>::infinity();  // of the row, capped so
  uint64_t total_mass = 0;                              // of the row at temperature 1
};

}  // namespace penstock
