#pragma once

// The draw of model/sampler/token_draw.cc (top-k, top-p and min-p by a histogram of integer masses)
// with one block per row. Masses are integers, so atomics and sums in any order give the CPU's
// results. All other arithmetic is IEEE double, rounded once per operation. A cut or a pick within
// a bucket is a radix select, digit by digit, over keys in the CPU's order.

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/sample.h"

namespace penstock::cuda {

constexpr int kSampleThreads = 512;
constexpr int kMassBits = 40, kOctaveSteps = 32;
constexpr int kBuckets = (kMassBits + 1) * kOctaveSteps;
constexpr int kListMax = 1024;  // most candidates that are kept in shared memory

struct SampleShared {
  uint64_t mass[kBuckets];
  uint64_t bins[256];
  uint64_t found_before, found_index;  // results of Find
  uint64_t total;
  float partial[kSampleThreads / 32];
  uint32_t count[kBuckets];
  uint32_t listed;
  uint32_t first;
  float list_logit[kListMax];
  uint32_t list_id[kListMax];
};

// Taylor coefficients of 2^f, computed as in token_mass.cc.
struct Exp2Series {
  static constexpr int kDegree = 10;
  double coefficient[kDegree + 1] = {};
  constexpr Exp2Series() {
    double term = 1;
    for (int k = 0; k <= kDegree; ++k) {
      coefficient[k] = term;
      term *= 0.693147180559945309417 / (k + 1);
    }
  }
};

// round(2^40 * 2^(-steps / 32)), with the same sequence of operations as token_mass.cc.
PENSTOCK_DEVICE uint64_t MassOfSteps(double steps) {
  constexpr double kRound = 6755399441055744.0, kToInteger = 4503599627370496.0;
  constexpr Exp2Series kSeries;
  constexpr int kDegree = Exp2Series::kDegree;
  const double exponent = Multiply(steps, -1.0 / kOctaveSteps);
  const double rounded = Add(exponent, kRound);
  const double fraction = Add(exponent, -Add(rounded, -kRound));
  double power = kSeries.coefficient[kDegree];
  PENSTOCK_UNROLL
  for (int k = kDegree - 1; k >= 0; --k) {
    power = Add(Multiply(power, fraction), kSeries.coefficient[k]);
  }
  const uint64_t scale =
      (DoubleToBits(rounded) << 52) + (static_cast<uint64_t>(1023 + kMassBits) << 52);
  const double mass = Add(Multiply(power, BitsToDouble(scale)), kToInteger);
  return DoubleToBits(mass) & ((uint64_t{1} << 52) - 1);
}

PENSTOCK_DEVICE uint64_t ShuffleXor64(uint64_t v, int mask) {
  const uint32_t low = ShuffleXor(static_cast<uint32_t>(v), mask);
  const uint32_t high = ShuffleXor(static_cast<uint32_t>(v >> 32), mask);
  return static_cast<uint64_t>(high) << 32 | low;
}

struct RowSampler {
  const SampleParams& p;
  const SampleRow row;
  const float* logits;
  SampleShared& shared;
  float max = 0;
  // The kept candidates: buckets [0, whole), and, if `partial`, the members of bucket `whole` whose
  // key is at most `cutoff` and that lie at most `limit` steps below the maximum.
  int whole = kBuckets;
  bool partial = false;
  uint64_t cutoff = ~uint64_t{0};
  double limit = kBuckets;
  int listed_bucket = -1;
  int barred = 0;  // of row.barred_ids; 0 while the row is read as it is

  PENSTOCK_DEVICE float Logit(uint32_t id) const {
    for (int i = 0; i < barred; ++i) {
      if (row.barred_ids[i] == id) return -INFINITY;
    }
    const float x = logits[id];
    return x > 3.402823466e38f ? 3.402823466e38f : x;
  }
  PENSTOCK_DEVICE double Steps(float logit, double steepness) const {
    const double steps =
        Multiply(Add(static_cast<double>(max), -static_cast<double>(logit)), steepness);
    return steps < kBuckets ? steps : kBuckets;
  }

  PENSTOCK_DEVICE void FindMax() {
    float top = -INFINITY;
    for (int i = ThreadX(); i < p.vocabulary; i += kSampleThreads) {
      const float x = Logit(i);
      top = x > top ? x : top;
    }
    PENSTOCK_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) top = fmaxf(top, ShuffleXor(top, mask));
    SyncBlock();  // all threads have read what an earlier call left
    if (ThreadX() % 32 == 0) shared.partial[ThreadX() / 32] = top;
    SyncBlock();
    for (int w = 0; w < kSampleThreads / 32; ++w) top = fmaxf(top, shared.partial[w]);
    max = top;
  }

  // Returns the lowest id with the maximal logit.
  PENSTOCK_DEVICE uint32_t Greedy() {
    if (ThreadX() == 0) shared.first = ~0u;
    SyncBlock();
    for (int i = ThreadX(); i < p.vocabulary; i += kSampleThreads) {
      if (Logit(i) == max) AtomicMin(&shared.first, static_cast<uint32_t>(i));
    }
    SyncBlock();
    return shared.first;
  }

  PENSTOCK_DEVICE uint64_t TotalMass(double steepness) {
    uint64_t sum = 0;
    for (int i = ThreadX(); i < p.vocabulary; i += kSampleThreads) {
      sum += MassOfSteps(Steps(Logit(i), steepness));
    }
    return BlockSum(sum);
  }

  PENSTOCK_DEVICE uint64_t BlockSum(uint64_t sum) {
    if (ThreadX() == 0) shared.total = 0;
    SyncBlock();
    PENSTOCK_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) sum += ShuffleXor64(sum, mask);
    if (ThreadX() % 32 == 0) AtomicAdd(&shared.total, sum);
    SyncBlock();
    const uint64_t total = shared.total;
    SyncBlock();
    return total;
  }

  PENSTOCK_DEVICE void FillHistogram() {
    for (int i = ThreadX(); i < kBuckets; i += kSampleThreads) {
      shared.mass[i] = 0;
      shared.count[i] = 0;
    }
    SyncBlock();
    for (int i = ThreadX(); i < p.vocabulary; i += kSampleThreads) {
      const double steps = Steps(Logit(i), row.steepness);
      if (!(steps < kBuckets)) continue;
      const int bucket = static_cast<int>(steps);
      AtomicAdd(&shared.mass[bucket], MassOfSteps(steps));
      AtomicAdd(&shared.count[bucket], 1u);
    }
    SyncBlock();
  }

  // Returns the index of the first of `size` weights at which the running sum reaches `target` (at
  // least 1), or `size` if it never does; `before` is the sum of the weights before it. The first
  // warp computes it for all threads.
  template <class T>
  PENSTOCK_DEVICE int Find(const T* weights, int size, uint64_t target, uint64_t& before) {
    if (ThreadX() < 32) {
      const int each = (size + 31) / 32, begin = ThreadX() * each;
      const int end = begin + each < size ? begin + each : size;
      uint64_t own = 0;
      for (int i = begin; i < end; ++i) own += weights[i];
      uint64_t up_to = own;  // inclusive scan over the lanes
      PENSTOCK_UNROLL
      for (int distance = 1; distance < 32; distance *= 2) {
        const int from = ThreadX() - distance;
        const uint32_t low = Shuffle(static_cast<uint32_t>(up_to), from & 31);
        const uint32_t high = Shuffle(static_cast<uint32_t>(up_to >> 32), from & 31);
        if (from >= 0) up_to += static_cast<uint64_t>(high) << 32 | low;
      }
      uint64_t sum = up_to - own;
      if (ThreadX() == 31 && up_to < target) {
        shared.found_index = static_cast<uint64_t>(size);
        shared.found_before = up_to;
      }
      if (sum < target && target <= up_to) {
        int i = begin;
        while (sum + weights[i] < target) sum += weights[i++];
        shared.found_index = static_cast<uint64_t>(i);
        shared.found_before = sum;
      }
    }
    SyncBlock();
    before = shared.found_before;
    const auto index = static_cast<int>(shared.found_index);
    SyncBlock();
    return index;
  }

  // Ascending keys are the CPU's order: higher logits first, equal logits by ascending id.
  PENSTOCK_DEVICE static uint64_t KeyOf(float logit, uint32_t id) {
    const uint32_t bits = FloatToBits(logit + 0.0f);  // maps -0 to +0
    const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    return static_cast<uint64_t>(~ascending) << 32 | id;
  }

  // Calls visit(logit, id, steps) for every member of `bucket`.
  template <class Visit>
  PENSTOCK_DEVICE void ForMembers(int bucket, const Visit& visit) {
    if (bucket == listed_bucket) {
      for (uint32_t i = ThreadX(); i < shared.listed; i += kSampleThreads) {
        const float logit = shared.list_logit[i];
        visit(logit, shared.list_id[i], Steps(logit, row.steepness));
      }
      return;
    }
    for (int i = ThreadX(); i < p.vocabulary; i += kSampleThreads) {
      const float logit = Logit(i);
      const double steps = Steps(logit, row.steepness);
      if (static_cast<int>(steps) == bucket) visit(logit, static_cast<uint32_t>(i), steps);
    }
  }

  // Copies the members of a small bucket to shared memory.
  PENSTOCK_DEVICE void List(int bucket) {
    if (bucket == listed_bucket || shared.count[bucket] > kListMax) return;
    if (ThreadX() == 0) shared.listed = 0;
    SyncBlock();
    ForMembers(bucket, [&](float logit, uint32_t id, double) {
      const uint32_t at = AtomicAdd(&shared.listed, 1u);
      shared.list_logit[at] = logit;
      shared.list_id[at] = id;
    });
    SyncBlock();
    listed_bucket = bucket;
  }

  PENSTOCK_DEVICE bool Kept(uint64_t key, double steps) const {
    return key <= cutoff && steps <= limit;
  }

  // Radix select: returns the lowest key of `bucket` up to which the weights of kept members reach
  // `target`. Keys have `digits` bytes. key(logit, id) and weight(steps) describe a member.
  template <class Key, class Weight>
  PENSTOCK_DEVICE uint64_t Select(int bucket, int digits, uint64_t target, const Key& key,
                                  const Weight& weight) {
    List(bucket);
    uint64_t prefix = 0;
    for (int digit = digits - 1; digit >= 0; --digit) {
      for (int i = ThreadX(); i < 256; i += kSampleThreads) shared.bins[i] = 0;
      SyncBlock();
      const int shift = 8 * digit;
      const bool first = digit == digits - 1;
      ForMembers(bucket, [&](float logit, uint32_t id, double steps) {
        const uint64_t k = key(logit, id);
        if (!first && (k >> (shift + 8)) != prefix) return;
        if (bucket == whole && !Kept(KeyOf(logit, id), steps)) return;
        AtomicAdd(&shared.bins[k >> shift & 255u], weight(steps));
      });
      SyncBlock();
      uint64_t before;
      const int found = Find(shared.bins, 256, target, before);
      target -= before;
      prefix = prefix << 8 | static_cast<uint64_t>(found & 255);
    }
    return prefix;
  }

  PENSTOCK_DEVICE uint64_t PartialMass() {
    if (!partial) return 0;
    List(whole);
    uint64_t sum = 0;
    ForMembers(whole, [&](float logit, uint32_t id, double steps) {
      if (Kept(KeyOf(logit, id), steps)) sum += MassOfSteps(steps);
    });
    return BlockSum(sum);
  }

  PENSTOCK_DEVICE uint64_t WholeMass() {
    uint64_t sum = 0;
    for (int i = ThreadX(); i < whole; i += kSampleThreads) sum += shared.mass[i];
    return BlockSum(sum);
  }

  PENSTOCK_DEVICE void CutAt(int bucket) {
    whole = bucket;
    partial = true;
    cutoff = ~uint64_t{0};
    limit = kBuckets;
  }

  PENSTOCK_DEVICE void KeepTopK() {
    const auto k = static_cast<uint64_t>(row.top_k);
    uint64_t before;
    const int bucket = Find(shared.count, kBuckets, k + 1, before);
    if (bucket == kBuckets) return;
    if (before == k) {
      whole = bucket;
      return;
    }
    CutAt(bucket);
    cutoff = Select(
        bucket, 8, k - before, [](float logit, uint32_t id) { return KeyOf(logit, id); },
        [](double) { return uint64_t{1}; });
  }

  PENSTOCK_DEVICE void KeepTopP() {
    const uint64_t total = WholeMass() + PartialMass();
    // left = ceil(total * top_p / 2^32), at least 1.
    const auto share = static_cast<uint64_t>(row.top_p);
    uint64_t left = MultiplyHigh(total, share << 32);
    if ((total * share & 0xffffffffu) != 0) ++left;
    if (left < 1) left = 1;
    uint64_t before = 0;
    int bucket = whole;
    if (whole > 0) bucket = Find(shared.mass, whole, left, before);
    if (bucket == kBuckets) return;
    if (bucket < whole) CutAt(bucket);
    if (!partial) return;
    cutoff = Select(
        bucket, 8, left - before, [](float logit, uint32_t id) { return KeyOf(logit, id); },
        [](double steps) { return MassOfSteps(steps); });
  }

  PENSTOCK_DEVICE void KeepMinP() {
    if (row.min_p_steps >= kBuckets) return;
    const auto bucket = static_cast<int>(row.min_p_steps);
    if (bucket > whole) return;
    if (bucket < whole) CutAt(bucket);
    limit = row.min_p_steps;
  }

  PENSTOCK_DEVICE uint32_t Pick() {
    const uint64_t target = MultiplyHigh(row.random, WholeMass() + PartialMass()) + 1;
    uint64_t before = 0;
    int bucket = whole;
    if (whole > 0) bucket = Find(shared.mass, whole, target, before);
    const uint64_t id = Select(
        bucket, 3, target - before, [](float, uint32_t member) { return uint64_t{member}; },
        [](double steps) { return MassOfSteps(steps); });
    return static_cast<uint32_t>(id);
  }
};

// Grid: draws.
__global__ void __launch_bounds__(kSampleThreads)
    SampleKernel(const __grid_constant__ SampleParams p) {
  auto& shared = *reinterpret_cast<SampleShared*>(SharedMemory());
  const SampleRow row = p.draws[BlockX()];
  if (row.logits_row < 0) return;
  RowSampler sampler{.p = p,
                     .row = row,
                     .logits = p.logits + static_cast<int64_t>(row.logits_row) * p.vocabulary,
                     .shared = shared};
  sampler.FindMax();
  SampledRow result{.id = 0, .logit = 0, .max = sampler.max, .total_mass = 0};
  if (sampler.max > -INFINITY) {
    result.total_mass = sampler.TotalMass(kOctaveSteps * 1.44269504088896340736);
    sampler.barred = row.barred;
    if (row.barred > 0) sampler.FindMax();
    if (sampler.max == -INFINITY) {
      result.id = 0;
    } else if (sampler.row.steepness == 0) {
      result.id = sampler.Greedy();
    } else {
      sampler.FillHistogram();
      if (sampler.row.top_k > 0) sampler.KeepTopK();
      if (sampler.row.top_p >= 0) sampler.KeepTopP();
      if (sampler.row.min_p_steps >= 0) sampler.KeepMinP();
      result.id = sampler.Pick();
    }
    result.logit = sampler.Logit(result.id);
  }
  if (ThreadX() == 0) p.sampled[BlockX()] = result;
}

}  // namespace penstock::cuda
