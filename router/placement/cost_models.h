#pragma once

#include <algorithm>
#include <cstdint>

namespace penstock {

// Cost models of one kind of worker, in milliseconds: linear in a few coefficients, which are
// fitted online (predictors.h) or given (penstock simulate).

// The time of a prefill of n prompt tokens of which p are cached:
// base + per_token * (n - p) + per_square * (n^2 - p^2). The square is attention's.
struct PrefillModel {
  double base_ms = 5;
  double ms_per_token = 0.2;
  double ms_per_square = 0;

  double Ms(uint32_t tokens, uint32_t cached) const {
    const double n = tokens;
    const double p = std::min<double>(cached, n > 0 ? n - 1 : 0);  // one token is always computed
    return base_ms + ms_per_token * (n - p) + ms_per_square * (n * n - p * p);
  }
};

// The time of one decode step of a batch.
struct StepModel {
  double base_ms = 10;
  double ms_per_sequence = 0.1;
  double ms_per_context_token = 1e-5;

  double Ms(double sequences, double context_tokens) const {
    return base_ms + ms_per_sequence * sequences + ms_per_context_token * context_tokens;
  }
};

// The time to move the KV of prompt tokens.
struct MoveModel {
  double latency_ms = 0;
  double ms_per_token = 0;

  double Ms(double tokens) const { return tokens > 0 ? latency_ms + ms_per_token * tokens : 0; }
};

}  // namespace penstock
