#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "model/sampler/drawn_token.h"
#include "model/sampler/token_mass.h"

namespace penstock {

// One draw from softmax(logits / temperature) after top-k, top-p (nucleus sampling: Holtzman et
// al., arXiv 1904.09751) of the remaining tokens, and min-p (Nguyen et al., arXiv 2407.01082).
// Higher logits rank first and equal logits by ascending id; this order is total, so every cut
// keeps a definite set. One pass adds integer masses (token_mass.h) to a histogram; the cuts and
// the pick then examine single buckets, so that nothing sorts the vocabulary. One thread at a time.
class TokenDraw {
 public:
  // `logits` outlives this object. `softmax.max` is the greatest logit. NaN is never drawn.
  TokenDraw(std::span<const float> logits, const Softmax& softmax);

  void KeepTopK(int32_t k);    // k >= 1
  void KeepTopP(float top_p);  // in (0, 1]: keeps the fewest tokens with this share of the mass
  // Keeps tokens with at least this share, in (0, 1], of the most likely token's mass.
  void KeepMinP(float min_p);

  // Maps a uniform 64-bit number to a kept token.
  uint32_t Pick(uint64_t random);

 private:
  struct Candidate {
    float logit;
    uint32_t id;
    uint64_t mass;
  };

  std::vector<Candidate> Gather(int bucket) const;  // in ascending order of ids
  uint64_t KeptMass() const;
  uint32_t PickFromBucket(int bucket, uint64_t target) const;

  const std::span<const float> logits_;
  const Softmax softmax_;
  std::array<uint64_t, kBuckets> mass_{};
  std::array<uint32_t, kBuckets> count_{};
  // The kept tokens: buckets [0, whole_buckets_) and, of the next bucket, `partial_`.
  int whole_buckets_ = kBuckets;
  std::vector<Candidate> partial_;
};

// The parameters in the units of the cuts. FixedShare: a share in units of 2^-32, rounded down.
// MinPSteps: the distance (Softmax::Steps) below the most likely token at which a token has `min_p`
// of its mass.
uint64_t FixedShare(float share);
float MinPSteps(float min_p);

// Draws a token as `spec` says; 0 if no logit is above -infinity. Caps +infinity in `logits`, and
// sets those of barred tokens to -infinity.
uint32_t DrawToken(std::span<float> logits, const DrawSpec& spec);

// Caps +infinity to the largest float, so that differences of logits are numbers, and returns the
// greatest logit, ignoring NaN.
float CapInfinity(std::span<float> logits);

}  // namespace penstock
