#pragma once

// The draw of model/sampler/token_draw.cc (top-k, top-p and min-p by a histogram of integer
// masses). Blocks that share a row find its maximum, then add up its masses; one block per row cuts
// and picks. Masses are integers, so atomics and sums in any order give the CPU's results. All
// other arithmetic is IEEE float, rounded once per operation. A cut or a pick within a bucket is a
// radix select, digit by digit, over keys in the CPU's order.

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/sample.h"

namespace penstock::cuda {

constexpr int kSampleThreads = 1024;                    // of the block that picks
constexpr int kPieceThreads = 256, kSamplePieces = 16;  // of the blocks that share a row
constexpr int kMassBits = 40, kOctaveSteps = 32;
constexpr int kBuckets = (kMassBits + 1) * kOctaveSteps;
constexpr int kListMax = 1024;  // most candidates that are kept in shared memory

// How much of a row lies how far below its maximum, in buckets of a 32nd of an octave.
struct SampleHistogram {
  uint64_t mass[kBuckets];
  uint32_t count[kBuckets];
};

// The results of the blocks that share a row, for the block that picks.
struct SampleScratch {
  SampleHistogram histogram;      // of the tokens that are not barred
  uint64_t mass[kSamplePieces];   // of all tokens, at temperature 1
  float max[kSamplePieces];       // of all tokens
  float top[kSamplePieces];       // of the tokens that are not barred
  uint32_t first[kSamplePieces];  // the lowest token that has it
};

struct PieceShared {
  SampleHistogram histogram;
  uint64_t total;
  float max[kPieceThreads / 32], top[kPieceThreads / 32];
  uint32_t first[kPieceThreads / 32];
};

struct SampleShared {
  SampleHistogram histogram;
  uint64_t bins[256];
  uint64_t found_before, found_index;  // results of Find
  uint64_t total;
  uint32_t listed;
  float list_logit[kListMax];
  uint32_t list_id[kListMax];
};

// Taylor coefficients of 2^f, computed as in token_mass.cc.
struct Exp2Series {
  static constexpr int kDegree = 7;
  float coefficient[kDegree + 1] = {};
  constexpr Exp2Series() {
    double term = 1;  // while compiling
    for (int k = 0; k <= kDegree; ++k) {
      coefficient[k] = static_cast<float>(term);
      term *= 0.693147180559945309417 / (k + 1);
    }
  }
};

// The integer nearest to x, of two the even one. x is at least 0 and below 2^41.
PENSTOCK_DEVICE uint64_t RoundToInteger(float x) {
  constexpr float kToInteger = 8388608.0f;  // 2^23: its sums are integers, and all above are
  if (x < kToInteger) return FloatToBits(Add(x, kToInteger)) - FloatToBits(kToInteger);
  const uint32_t bits = FloatToBits(x);
  return uint64_t{(bits & 0x7fffffu) | 0x800000u} << ((bits >> 23) - (127 + 23));
}

// round(2^40 * 2^(-steps / 32)), with the same sequence of operations as token_mass.cc.
PENSTOCK_DEVICE uint64_t MassOfSteps(float steps) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  constexpr Exp2Series kSeries;
  constexpr int kDegree = Exp2Series::kDegree;
  const float exponent = Multiply(steps, -1.0f / kOctaveSteps);
  const float rounded = Add(exponent, kRound);
  const float fraction = Add(exponent, -Add(rounded, -kRound));
  float power = kSeries.coefficient[kDegree];
  PENSTOCK_UNROLL
  for (int k = kDegree - 1; k >= 0; --k) {
    power = Add(Multiply(power, fraction), kSeries.coefficient[k]);
  }
  const uint32_t scale =
      (FloatToBits(rounded) << 23) + (static_cast<uint32_t>(127 + kMassBits) << 23);
  return RoundToInteger(Multiply(power, BitsToFloat(scale)));
}

PENSTOCK_DEVICE uint64_t ShuffleXor64(uint64_t v, int mask) {
  const uint32_t low = ShuffleXor(static_cast<uint32_t>(v), mask);
  const uint32_t high = ShuffleXor(static_cast<uint32_t>(v >> 32), mask);
  return static_cast<uint64_t>(high) << 32 | low;
}

// The logits of a draw, whose tokens may be barred.
struct DrawLogits {
  const float* logits;
  const SampleRow& row;
  const int barred;

  PENSTOCK_DEVICE DrawLogits(const SampleParams& p, const SampleRow& draw)
      : logits(p.logits + static_cast<int64_t>(draw.logits_row) * p.vocabulary),
        row(draw),
        barred(draw.barred) {}

  // Infinity is capped to the largest float.
  PENSTOCK_DEVICE static float Capped(float x) { return x > 3.402823466e38f ? 3.402823466e38f : x; }
  PENSTOCK_DEVICE bool IsBarred(uint32_t id) const {
    for (int i = 0; i < barred; ++i) {
      if (row.barred_ids[i] == id) return true;
    }
    return false;
  }
  PENSTOCK_DEVICE float Allowed(uint32_t id) const {
    return IsBarred(id) ? -INFINITY : Capped(logits[id]);
  }

  // Calls visit(logit, id) for this thread's tokens of [begin, end), in ascending order. Several
  // loads are under way at a time.
  template <int kThreads, class Visit>
  PENSTOCK_DEVICE void ForEach(int begin, int end, const Visit& visit) const {
    constexpr int kAtOnce = 8;
    for (int first = begin + ThreadX(); first < end; first += kAtOnce * kThreads) {
      float x[kAtOnce];
      PENSTOCK_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int id = first + i * kThreads;
        x[i] = id < end ? Capped(logits[id]) : 0.0f;
      }
      PENSTOCK_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int id = first + i * kThreads;
        if (id < end) visit(x[i], static_cast<uint32_t>(id));
      }
    }
  }
};

// How far below `max` a logit is, at most kBuckets.
PENSTOCK_DEVICE float StepsBelow(float max, float logit, float steepness) {
  const float steps = Multiply(Add(max, -logit), steepness);
  return steps < kBuckets ? steps : kBuckets;
}

// Returns the total of every thread's `sum` to all threads of the block. `total` is shared memory.
PENSTOCK_DEVICE uint64_t AddInBlock(uint64_t sum, uint64_t& total) {
  if (ThreadX() == 0) total = 0;
  SyncBlock();
  PENSTOCK_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) sum += ShuffleXor64(sum, mask);
  if (ThreadX() % 32 == 0) AtomicAdd(&total, sum);
  SyncBlock();
  sum = total;
  SyncBlock();
  return sum;
}

// The highest logit so far, and the lowest token that has it.
struct Top {
  float logit = -INFINITY;
  uint32_t first = ~0u;

  PENSTOCK_DEVICE void Take(float other, uint32_t id) {
    if (other > logit || (other == logit && id < first)) {
      logit = other;
      first = id;
    }
  }
};

// One block's piece of a row.
struct RowPiece {
  const SampleRow& row;
  const DrawLogits logits;
  SampleScratch& scratch;
  const int index, begin, end;

  PENSTOCK_DEVICE RowPiece(const SampleParams& p)
      : row(p.draws[BlockX()]),
        logits(p, row),
        scratch(static_cast<SampleScratch*>(p.scratch)[BlockX()]),
        index(BlockY()),
        begin(Border(p.vocabulary, index)),
        end(Border(p.vocabulary, index + 1)) {}

  PENSTOCK_DEVICE static int Border(int32_t vocabulary, int piece) {
    const int each = (vocabulary + kSamplePieces - 1) / kSamplePieces;
    return each * piece < vocabulary ? each * piece : vocabulary;
  }

  PENSTOCK_DEVICE static void ClearHistogram(SampleHistogram& histogram, int first, int step) {
    for (int i = first; i < kBuckets; i += step) {
      histogram.mass[i] = 0;
      histogram.count[i] = 0;
    }
  }

  PENSTOCK_DEVICE void FindTop(PieceShared& shared) {
    ClearHistogram(scratch.histogram, index * kPieceThreads + ThreadX(),
                   kSamplePieces * kPieceThreads);
    float max = -INFINITY;
    Top top;
    logits.ForEach<kPieceThreads>(begin, end, [&](float x, uint32_t id) {
      max = x > max ? x : max;
      if (x > top.logit && !logits.IsBarred(id)) top = {x, id};
    });
    PENSTOCK_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) {
      max = fmaxf(max, ShuffleXor(max, mask));
      top.Take(ShuffleXor(top.logit, mask), ShuffleXor(top.first, mask));
    }
    if (ThreadX() % 32 == 0) {
      shared.max[ThreadX() / 32] = max;
      shared.top[ThreadX() / 32] = top.logit;
      shared.first[ThreadX() / 32] = top.first;
    }
    SyncBlock();
    if (ThreadX() != 0) return;
    for (int w = 1; w < kPieceThreads / 32; ++w) {
      max = fmaxf(max, shared.max[w]);
      top.Take(shared.top[w], shared.first[w]);
    }
    scratch.max[index] = max;
    scratch.top[index] = top.logit;
    scratch.first[index] = top.first;
  }

  PENSTOCK_DEVICE void AddMasses(PieceShared& shared) {
    const float max = MaxOf(scratch.max), top = MaxOf(scratch.top);
    const bool draws = row.steepness > 0 && top > -INFINITY;
    if (draws) ClearHistogram(shared.histogram, ThreadX(), kPieceThreads);
    SyncBlock();
    constexpr auto kPlain =
        static_cast<float>(kOctaveSteps * 1.44269504088896340736);  // temperature 1
    uint64_t sum = 0;
    logits.ForEach<kPieceThreads>(begin, end, [&](float x, uint32_t id) {
      sum += MassOfSteps(StepsBelow(max, x, kPlain));
      if (!draws || logits.IsBarred(id)) return;
      const float steps = StepsBelow(top, x, row.steepness);
      if (!(steps < kBuckets)) return;
      const int bucket = static_cast<int>(steps);
      AtomicAdd(&shared.histogram.mass[bucket], MassOfSteps(steps));
      AtomicAdd(&shared.histogram.count[bucket], 1u);
    });
    sum = AddInBlock(sum, shared.total);
    if (ThreadX() == 0) scratch.mass[index] = max > -INFINITY ? sum : 0;
    if (!draws) return;
    for (int i = ThreadX(); i < kBuckets; i += kPieceThreads) {
      if (shared.histogram.count[i] == 0) continue;
      AtomicAdd(&scratch.histogram.mass[i], shared.histogram.mass[i]);
      AtomicAdd(&scratch.histogram.count[i], shared.histogram.count[i]);
    }
  }

  PENSTOCK_DEVICE static float MaxOf(const float (&pieces)[kSamplePieces]) {
    float max = -INFINITY;
    for (int i = 0; i < kSamplePieces; ++i) max = fmaxf(max, pieces[i]);
    return max;
  }
};

// Grid: draws x kSamplePieces.
__global__ void __launch_bounds__(kPieceThreads)
    FindTopsKernel(const __grid_constant__ SampleParams p) {
  if (p.draws[BlockX()].logits_row < 0) return;
  RowPiece(p).FindTop(*reinterpret_cast<PieceShared*>(SharedMemory()));
}
// Grid: draws x kSamplePieces. After FindTopsKernel.
__global__ void __launch_bounds__(kPieceThreads, 8)
    AddMassesKernel(const __grid_constant__ SampleParams p) {
  if (p.draws[BlockX()].logits_row < 0) return;
  RowPiece(p).AddMasses(*reinterpret_cast<PieceShared*>(SharedMemory()));
}

struct RowSampler {
  const SampleParams& p;
  const SampleRow& row;
  const DrawLogits logits;
  const SampleScratch& scratch;
  SampleShared& shared;
  float max = 0;  // of the tokens that are not barred
  // The kept candidates: buckets [0, whole), and, if `partial`, the members of bucket `whole` whose
  // key is at most `cutoff` and that lie at most `limit` steps below the maximum.
  int whole = kBuckets;
  bool partial = false;
  uint64_t cutoff = ~uint64_t{0};
  float limit = kBuckets;
  int listed_bucket = -1;

  PENSTOCK_DEVICE float Steps(float logit) const { return StepsBelow(max, logit, row.steepness); }

  // Returns the lowest id with the maximal logit.
  PENSTOCK_DEVICE uint32_t Greedy() const {
    Top top;
    for (int i = 0; i < kSamplePieces; ++i) top.Take(scratch.top[i], scratch.first[i]);
    return top.first;
  }

  PENSTOCK_DEVICE uint64_t TotalMass() const {
    uint64_t sum = 0;
    for (int i = 0; i < kSamplePieces; ++i) sum += scratch.mass[i];
    return sum;
  }

  PENSTOCK_DEVICE void TakeHistogram() {
    for (int i = ThreadX(); i < kBuckets; i += kSampleThreads) {
      shared.histogram.mass[i] = scratch.histogram.mass[i];
      shared.histogram.count[i] = scratch.histogram.count[i];
    }
    SyncBlock();
  }

  PENSTOCK_DEVICE uint64_t BlockSum(uint64_t sum) { return AddInBlock(sum, shared.total); }

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
        visit(logit, shared.list_id[i], Steps(logit));
      }
      return;
    }
    logits.ForEach<kSampleThreads>(0, p.vocabulary, [&](float logit, uint32_t id) {
      const float steps = Steps(logit);
      if (static_cast<int>(steps) == bucket && !logits.IsBarred(id)) visit(logit, id, steps);
    });
  }

  // Copies the members of a small bucket to shared memory.
  PENSTOCK_DEVICE void List(int bucket) {
    if (bucket == listed_bucket || shared.histogram.count[bucket] > kListMax) return;
    if (ThreadX() == 0) shared.listed = 0;
    SyncBlock();
    ForMembers(bucket, [&](float logit, uint32_t id, float) {
      const uint32_t at = AtomicAdd(&shared.listed, 1u);
      shared.list_logit[at] = logit;
      shared.list_id[at] = id;
    });
    SyncBlock();
    listed_bucket = bucket;
  }

  PENSTOCK_DEVICE bool Kept(uint64_t key, float steps) const {
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
      ForMembers(bucket, [&](float logit, uint32_t id, float steps) {
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
    ForMembers(whole, [&](float logit, uint32_t id, float steps) {
      if (Kept(KeyOf(logit, id), steps)) sum += MassOfSteps(steps);
    });
    return BlockSum(sum);
  }

  PENSTOCK_DEVICE uint64_t WholeMass() {
    uint64_t sum = 0;
    for (int i = ThreadX(); i < whole; i += kSampleThreads) sum += shared.histogram.mass[i];
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
    const int bucket = Find(shared.histogram.count, kBuckets, k + 1, before);
    if (bucket == kBuckets) return;
    if (before == k) {
      whole = bucket;
      return;
    }
    CutAt(bucket);
    cutoff = Select(
        bucket, 8, k - before, [](float logit, uint32_t id) { return KeyOf(logit, id); },
        [](float) { return uint64_t{1}; });
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
    if (whole > 0) bucket = Find(shared.histogram.mass, whole, left, before);
    if (bucket == kBuckets) return;
    if (bucket < whole) CutAt(bucket);
    if (!partial) return;
    cutoff = Select(
        bucket, 8, left - before, [](float logit, uint32_t id) { return KeyOf(logit, id); },
        [](float steps) { return MassOfSteps(steps); });
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
    if (whole > 0) bucket = Find(shared.histogram.mass, whole, target, before);
    const uint64_t id = Select(
        bucket, 3, target - before, [](float, uint32_t member) { return uint64_t{member}; },
        [](float steps) { return MassOfSteps(steps); });
    return static_cast<uint32_t>(id);
  }
};

// Grid: draws. After AddMassesKernel.
__global__ void __launch_bounds__(kSampleThreads)
    PickKernel(const __grid_constant__ SampleParams p) {
  auto& shared = *reinterpret_cast<SampleShared*>(SharedMemory());
  const SampleRow& row = p.draws[BlockX()];
  if (row.logits_row < 0) return;
  const DrawLogits logits(p, row);
  const SampleScratch& scratch = static_cast<const SampleScratch*>(p.scratch)[BlockX()];
  RowSampler sampler{.p = p,
                     .row = row,
                     .logits = logits,
                     .scratch = scratch,
                     .shared = shared,
                     .max = RowPiece::MaxOf(scratch.top)};
  SampledRow result{
      .id = 0, .logit = 0, .max = RowPiece::MaxOf(scratch.max), .total_mass = sampler.TotalMass()};
  if (result.max > -INFINITY) {
    if (sampler.max > -INFINITY) {
      if (row.steepness == 0) {
        result.id = sampler.Greedy();
      } else {
        sampler.TakeHistogram();
        if (row.top_k > 0) sampler.KeepTopK();
        if (row.top_p >= 0) sampler.KeepTopP();
        if (row.min_p_steps >= 0) sampler.KeepMinP();
        result.id = sampler.Pick();
      }
    }
    result.logit = logits.Allowed(result.id);
  }
  if (ThreadX() == 0) p.sampled[BlockX()] = result;
}

}  // namespace penstock::cuda
