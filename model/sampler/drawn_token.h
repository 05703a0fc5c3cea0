#pragma once

#include <array>
#include <cstdint>
#include <limits>

namespace penstock {

// The largest number of stop tokens that a draw may leave out.
constexpr int32_t kBarredMax = 8;

// The parameters of one draw from a row of logits (token_draw.h), as in SamplingParams.
struct DrawSpec {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;
  int32_t top_k = 0;  // 0: off
  float min_p = 0.0f;
  uint64_t random = 0;  // uniform over 64 bits
  // Tokens that must not be drawn, as stop tokens before min_tokens; `barred` entries are used. The
  // logit, maximum and mass of the DrawnToken are those of the row as it is.
  int32_t barred = 0;
  std::array<uint32_t, kBarredMax> barred_ids{};
};

// The result of a draw, with the values from which its log-probability follows.
struct DrawnToken {
  uint32_t id = 0;
  float logit = 0;                                      // +infinity is capped to the largest float
  float max = -std::numeric_limits<float>::infinity();  // maximum of the row, capped likewise
  uint64_t total_mass = 0;                              // total of the row at temperature 1
};

}  // namespace penstock
