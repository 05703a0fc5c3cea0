#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace penstock {

// A token and its log-probability.
struct TokenLogprob {
  uint32_t id = 0;
  float logprob = 0.0f;
};

// Log-softmax of the raw logits of one position, of which `max` is the greatest.
class LogProbs {
 public:
  // `total_mass` is at temperature 1.
  LogProbs(float max, uint64_t total_mass);
  float Of(float logit) const;

 private:
  float max_;
  double log_total_;
};

// The `count` highest logits, best first, each as the `logprob` of its token; equal ones by
// ascending id. NaN is left out.
std::vector<TokenLogprob> TopLogits(std::span<const float> logits, size_t count);
// The `count` most likely tokens, best first; equal logits by ascending id. NaN is left out.
std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, const LogProbs& logprobs,
                                      size_t count);

// The error of logits of which none is finite.
absl::Status LogitsNotFinite();

// The score of a token that was given, not drawn.
struct TokenScore {
  float logprob = 0.0f;           // NaN if no logit is finite
  uint32_t rank = 0;              // 1 + the number of tokens with a higher logit
  std::vector<TokenLogprob> top;  // best first
};

// Scores `token` by the logits of the position before it, [vocab]: natural log under the model's
// own distribution, with the bits that Sampler gives for a token that it draws. Caps infinite
// logits.
TokenScore ScoreToken(std::span<float> logits, uint32_t token, size_t top_count);

}  // namespace penstock
