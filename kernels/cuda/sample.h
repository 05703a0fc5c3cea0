#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::cuda {

// The parameters of one draw, as model/sampler/token_draw.h takes them (with the constants of
// model/sampler/token_mass.h).
struct SampleRow {
  int32_t logits_row = -1;  // negative: padding, nothing is drawn
  float steepness = 0;      // Softmax::At(max, temperature).steepness; 0: greedy
  int32_t top_k = 0;        // 0: off
  int64_t top_p = -1;       // in units of 2^-32, rounded down, below 2^32; negative: off
  float min_p_steps = -1;   // steps below the most likely token; negative: off
  uint64_t random = 0;
  int32_t barred = 0;  // tokens that are not drawn: the first entries of barred_ids
  uint32_t barred_ids[8] = {};
};

struct SampledRow {
  uint32_t id = 0;
  float logit = 0;          // +infinity is capped to the largest float
  float max = 0;            // maximum of the row, capped likewise
  uint64_t total_mass = 0;  // at temperature 1; with `max` it gives log-probabilities
};

struct SampleParams {
  const float* logits = nullptr;  // [rows][vocabulary]; NaN counts as -infinity
  int32_t vocabulary = 0;         // at most 2^23
  const SampleRow* draws = nullptr;
  SampledRow* sampled = nullptr;  // [draws]
  void* scratch = nullptr;        // of SampleScratchBytes, aligned to 8 bytes
};

size_t SampleScratchBytes(int draws);

// Draws the token that TokenDraw picks for the same logits, bit for bit: all sums are of integers,
// and nothing is computed in doubles. The id is 0 if no logit is above -infinity.
void Sample(const SampleParams& params, int draws, void* stream);

}  // namespace penstock::cuda
