#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "model/sampler/drawn_token.h"
#include "model/sampler/token_mass.h"

namespace penstock {

// One draw from softmax(logits / temperature), cut by top-k, then top-p of what is left, then
// min-p. Likelier tokens first, equal logits by ascending id: that order is total, so every cut
// keeps a definite set. One pass computes exponentials into a histogram; the cuts and the pick then
// look at single buckets of it, and nothing sorts the vocabulary.
class TokenDraw {
 public:
  // `logits` outlives this; `softmax.max` is the greatest of them. NaN is never drawn.
  TokenDraw(std::span<const float> logits, const Softmax& softmax);

  void KeepTopK(int32_t k);    // at least 1
  void KeepTopP(float top_p);  // in (0, 1]: the fewest tokens that have this share together
  void KeepMinP(float min_p);  // in (0, 1]: those with at least this share of the likeliest

  // Maps a uniform 64-bit number to a token.
  uint32_t Pick(uint64_t random);

 private:
  struct Candidate {
    float logit;
    uint32_t id;
    uint64_t mass;
  };

  std::vector<Candidate> Gather(int bucket) const;  // ascending ids
  uint64_t KeptMass() const;
  uint32_t PickFromBucket(int bucket, uint64_t target) const;

  const std::span<const float> logits_;
  const Softmax softmax_;
  std::array<uint64_t, kBuckets> mass_{};
  std::array<uint32_t, kBuckets> count_{};
  // What is kept: buckets [0, whole_buckets_) and, of the next one, `partial_`.
  int whole_buckets_ = kBuckets;
  std::vector<Candidate> partial_;
};

// The knobs as the cuts take them: a share in 2^-32, rounded down, and how many steps (of
// Softmax::Steps) below the likeliest token one of `min_p` of its share is.
uint64_t FixedShare(float share);
double MinPSteps(float min_p);

// The token that `spec` draws; 0 where no logit is above -infinity. Caps +infinity in `logits`.
uint32_t DrawToken(std::span<float> logits, const DrawSpec& spec);

// The greatest logit, NaN apart, after +infinity was capped to the largest float, so that
// differences of logits are numbers.
float CapInfinity(std::span<float> logits);

}  // namespace penstock
