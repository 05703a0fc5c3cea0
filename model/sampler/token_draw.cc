#include "model/sampler/token_draw.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

__extension__ using Uint128 = unsigned __int128;

// Returns floor(a * b / 2^64).
uint64_t MultiplyHigh(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<Uint128>(a) * b >> 64);
}

// Returns ceil(total * share), at least 1.
uint64_t ShareOf(uint64_t total, float share) {
  const Uint128 product = static_cast<Uint128>(total) * FixedShare(share) + 0xffffffffu;
  return std::max<uint64_t>(1, static_cast<uint64_t>(product >> 32));
}

}  // namespace

uint64_t FixedShare(float share) {
  return static_cast<uint64_t>(static_cast<double>(share) * 4294967296.0);
}

float MinPSteps(float min_p) {
  return static_cast<float>(-PortableLog(min_p) / PortableLog(2.0) * kOctaveSteps);
}

TokenDraw::TokenDraw(std::span<const float> logits, const Softmax& softmax)
    : logits_(logits), softmax_(softmax) {
  float steps[kMassBlock];
  uint64_t mass[kMassBlock];
  for (size_t i = 0; i < logits.size(); i += kMassBlock) {
    const auto block = logits.subspan(i, std::min<size_t>(kMassBlock, logits.size() - i));
    MassBlock(softmax, block, steps, mass);
    for (size_t j = 0; j < block.size(); j++) {
      if (steps[j] >= kBuckets) continue;
      const int bucket = static_cast<int>(steps[j]);
      mass_[bucket] += mass[j];
      count_[bucket]++;
    }
  }
}

std::vector<TokenDraw::Candidate> TokenDraw::Gather(int bucket) const {
  std::vector<Candidate> members;
  members.reserve(count_[bucket]);
  for (uint32_t id = 0; id < logits_.size(); id++) {
    if (static_cast<int>(softmax_.Steps(logits_[id])) != bucket) continue;
    members.push_back({logits_[id], id, Mass(softmax_, logits_[id])});
  }
  return members;
}

// Top-k: whole buckets while they fit, and a quickselect in the bucket that contains the k-th
// token.
void TokenDraw::KeepTopK(int32_t k) {
  auto left = static_cast<uint64_t>(k);
  int bucket = 0;
  while (bucket < kBuckets && count_[bucket] <= left) left -= count_[bucket++];
  if (bucket == kBuckets) return;
  whole_buckets_ = bucket;
  if (left == 0) return;
  partial_ = Gather(bucket);
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  };
  const auto end = partial_.begin() + static_cast<ptrdiff_t>(left);
  std::nth_element(partial_.begin(), end, partial_.end(), better);
  partial_.erase(end, partial_.end());
}

uint64_t TokenDraw::KeptMass() const {
  const uint64_t whole =
      std::accumulate(mass_.begin(), mass_.begin() + whole_buckets_, uint64_t{0});
  return std::accumulate(partial_.begin(), partial_.end(), whole,
                         [](uint64_t sum, const Candidate& c) { return sum + c.mass; });
}

// Top-p, or nucleus sampling (Holtzman et al., arXiv 1904.09751), over integer masses: whole
// buckets while they are below the share, and a sort of the bucket in which the share is reached.
void TokenDraw::KeepTopP(float top_p) {
  uint64_t left = ShareOf(KeptMass(), top_p);
  int bucket = 0;
  while (bucket < whole_buckets_ && mass_[bucket] < left) left -= mass_[bucket++];
  if (bucket == kBuckets) return;
  if (bucket < whole_buckets_) {
    partial_ = Gather(bucket);
    whole_buckets_ = bucket;
  }
  std::ranges::sort(partial_, [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  });
  size_t kept = 0;
  for (uint64_t sum = 0; kept < partial_.size() && sum < left; kept++) sum += partial_[kept].mass;
  partial_.resize(kept);
}

void TokenDraw::KeepMinP(float min_p) {
  const float limit = MinPSteps(min_p);
  if (limit >= kBuckets) return;
  const int bucket = static_cast<int>(limit);
  if (bucket > whole_buckets_) return;
  if (bucket < whole_buckets_) {
    partial_ = Gather(bucket);
    whole_buckets_ = bucket;
  }
  std::erase_if(partial_, [&](const Candidate& c) { return softmax_.Steps(c.logit) > limit; });
}

uint32_t TokenDraw::PickFromBucket(int bucket, uint64_t target) const {
  for (uint32_t id = 0; id < logits_.size(); id++) {
    if (static_cast<int>(softmax_.Steps(logits_[id])) != bucket) continue;
    const uint64_t mass = Mass(softmax_, logits_[id]);
    if (target < mass) return id;
    target -= mass;
  }
  PENSTOCK_CHECK(false, "a bucket's mass is the sum of its tokens' masses");
  return 0;
}

// Inverse transform sampling: the token in whose interval of the cumulative mass the random number
// falls.
uint32_t TokenDraw::Pick(uint64_t random) {
  uint64_t target = MultiplyHigh(random, KeptMass());
  for (int bucket = 0; bucket < whole_buckets_; bucket++) {
    if (target < mass_[bucket]) return PickFromBucket(bucket, target);
    target -= mass_[bucket];
  }
  std::ranges::sort(partial_, {}, &Candidate::id);
  for (const Candidate& candidate : partial_) {
    if (target < candidate.mass) return candidate.id;
    target -= candidate.mass;
  }
  PENSTOCK_CHECK(false, "the kept tokens include the most likely one");
  return 0;
}

float CapInfinity(std::span<float> logits) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const float max = MaxLogit(logits);
  if (max <= kLargest) return max;
  for (float& logit : logits) {
    if (logit > kLargest) logit = kLargest;
  }
  return kLargest;
}

uint32_t DrawToken(std::span<float> logits, const DrawSpec& spec) {
  for (int32_t i = 0; i < spec.barred; ++i) {
    if (spec.barred_ids[i] < logits.size()) {
      logits[spec.barred_ids[i]] = -std::numeric_limits<float>::infinity();
    }
  }
  const float max = CapInfinity(logits);
  if (spec.temperature == 0.0f || max == -std::numeric_limits<float>::infinity()) {
    const auto best = std::ranges::find(logits, max);
    return best == logits.end() ? 0 : static_cast<uint32_t>(best - logits.begin());
  }
  TokenDraw draw(logits, Softmax::At(max, spec.temperature));
  if (spec.top_k > 0) draw.KeepTopK(spec.top_k);
  if (spec.top_p < 1.0f) draw.KeepTopP(spec.top_p);
  if (spec.min_p > 0.0f) draw.KeepMinP(spec.min_p);
  return draw.Pick(spec.random);
}

}  // namespace penstock
