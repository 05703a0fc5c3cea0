#pragma once

// Which experts a row uses: scores, the choice, and the sort of (row, choice) pairs by expert.
//
// This room, kernels/cuda/device/experts, has the kernels of mixtures of experts. It may use
// kernels/cuda, kernels/cuda/device and kernels/cuda/device/weights.

#include "kernels/cuda/device/block_ops.cuh"
#include "kernels/cuda/device/row_values.cuh"
#include "kernels/cuda/experts.h"

namespace penstock::cuda {

constexpr int kScoreWarps = kRowThreads / 32;  // of a block; each has one vector
constexpr int kScoreRows = 4;                  // that a warp reads its vector for

// Grid: pieces of kScoreRows rows x pieces of kScoreWarps vectors.
__global__ void __launch_bounds__(kRowThreads) ScoreKernel(const __grid_constant__ ScoreParams p) {
  const int32_t first = BlockX() * kScoreRows, vector = BlockY() * kScoreWarps + ThreadX() / 32;
  if (vector >= p.count) return;
  const float* weights = p.vectors + static_cast<int64_t>(vector) * p.hidden;
  float sums[kScoreRows] = {};
  for (int32_t i = 4 * (ThreadX() % 32); i < p.hidden; i += 128) {
    const Floats<4> w = FloatsAt<4>(weights + i);
    PENSTOCK_UNROLL
    for (int r = 0; r < kScoreRows; ++r) {
      if (first + r >= p.rows) continue;
      const Floats<4> x = WidenedAt(p.input + static_cast<int64_t>(first + r) * p.hidden + i);
      PENSTOCK_UNROLL
      for (int j = 0; j < 4; ++j) sums[r] = MultiplyAdd(x.value[j], w.value[j], sums[r]);
    }
  }
  PENSTOCK_UNROLL
  for (int r = 0; r < kScoreRows; ++r) {
    float sum = WarpSum(sums[r]);
    if (p.bias != nullptr) sum = Add(sum, p.bias[vector]);
    if (first + r < p.rows && ThreadX() % 32 == 0) {
      p.scores[static_cast<int64_t>(first + r) * p.count + vector] = sum;
    }
  }
}

PENSTOCK_DEVICE float ExpOf(float x) { return Exp2(Multiply(1.4426950408889634f, x)); }
// If 2^x overflows to infinity, the quotient is 0, which is the right limit.
PENSTOCK_DEVICE float SigmoidOf(float x) { return Divide(1.0f, Add(1.0f, ExpOf(-x))); }

// A warp that chooses the experts of a row. Lane i has the experts i, 32 + i, 64 + i and so on,
// and the row's choice i.
struct RouteWarp {
  static constexpr int kEach = kExpertsMax / 32;

  const RouteParams& p;
  const float* scores;
  int lane;
  float keys[kEach]{};  // that experts are chosen by
  uint32_t taken = 0;   // bit j: expert 32 * j + lane is chosen, or in a group that is left out
  int32_t choice = 0;

  PENSTOCK_DEVICE RouteWarp(const RouteParams& params, int64_t row)
      : p(params), scores(params.scores + row * params.count), lane(ThreadX() % 32) {
    PENSTOCK_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const int32_t e = 32 * j + lane;
      if (e < p.experts) keys[j] = KeyOf(e);
    }
    if (p.groups > 1) LeaveOutGroups();
  }

  PENSTOCK_DEVICE float KeyOf(int32_t expert) const {
    if (!p.sigmoid) return scores[expert];
    const float chance = SigmoidOf(scores[expert]);
    return p.choice_bias == nullptr ? chance : Add(chance, p.choice_bias[expert]);
  }

  // The key that groups of experts are compared by: their best one, or with sigmoids the sum of the
  // two best.
  PENSTOCK_DEVICE float GroupKey(int32_t group, int32_t size) const {
    float best = -INFINITY, second = -INFINITY;
    const auto add = [&](float key) {
      second = fmaxf(second, fminf(best, key));
      best = fmaxf(best, key);
    };
    PENSTOCK_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const int32_t e = 32 * j + lane;
      if (e < p.experts && e / size == group) add(keys[j]);
    }
    PENSTOCK_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) {
      const float other = ShuffleXor(best, mask), other_second = ShuffleXor(second, mask);
      add(other);
      add(other_second);
    }
    return p.sigmoid ? Add(best, second) : best;
  }

  // Lane i has group i.
  PENSTOCK_DEVICE void LeaveOutGroups() {
    const int32_t size = p.experts / p.groups;
    float key = 0;
    for (int32_t group = 0; group < p.groups; ++group) {
      const float of_group = GroupKey(group, size);
      if (lane == group) key = of_group;
    }
    uint32_t kept = 0;
    for (int32_t i = 0; i < p.kept_groups; ++i) {
      const bool open = lane < p.groups && (kept >> lane & 1) == 0;
      kept |= 1u << Winner(key, open ? lane : -1);
    }
    PENSTOCK_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const int32_t e = 32 * j + lane;
      if (e < p.experts && (kept >> (e / size) & 1) == 0) taken |= 1u << j;
    }
  }

  // The untaken expert with the highest key; of equal ones the one with the lowest id.
  PENSTOCK_DEVICE int32_t Best() const {
    float best = 0;
    int32_t id = -1;
    PENSTOCK_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const int32_t e = 32 * j + lane;
      if (e >= p.experts || (taken >> j & 1) != 0) continue;
      if (id < 0 || keys[j] > best) {
        best = keys[j];
        id = e;
      }
    }
    return Winner(best, id);
  }

  // The id of the lane with the highest key, the lowest id of equal ones. A negative id takes no
  // part. NaN loses against nothing and beats nothing, so lanes may differ: lane 0 decides.
  static PENSTOCK_DEVICE int32_t Winner(float best, int32_t id) {
    PENSTOCK_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) {
      const float key = ShuffleXor(best, mask);
      const auto other = static_cast<int32_t>(ShuffleXor(static_cast<uint32_t>(id), mask));
      if (other >= 0 && (id < 0 || key > best || (key == best && other < id))) {
        best = key;
        id = other;
      }
    }
    return static_cast<int32_t>(Shuffle(static_cast<uint32_t>(id), 0));
  }

  PENSTOCK_DEVICE void Choose() {
    for (int i = 0; i < p.per_token; ++i) {
      const int32_t expert = Best();
      if (lane == expert % 32) taken |= 1u << (expert / 32);
      if (lane == i) choice = expert;
    }
  }

  // The sum of a value of each choice, in the order of choice.
  PENSTOCK_DEVICE float SumOfChoices(float value, float sum) const {
    for (int i = 0; i < p.per_token; ++i) sum = Add(sum, Shuffle(value, i));
    return sum;
  }

  PENSTOCK_DEVICE float SumOfAll(float top) const {
    float sum = 0;
    PENSTOCK_UNROLL
    for (int j = 0; j < kEach; ++j) {
      if (32 * j + lane < p.experts) sum = Add(sum, ExpOf(Add(scores[32 * j + lane], -top)));
    }
    return WarpSum(sum);
  }

  // The weight of the lane's choice.
  PENSTOCK_DEVICE float WeightOf() const {
    const float score = scores[choice];
    float weight = 0, sum = 1;
    if (p.sigmoid) {
      weight = SigmoidOf(score);
      if (p.normalise) sum = SumOfChoices(weight, 1e-20f);
    } else {
      const float top = Shuffle(score, 0);
      weight = ExpOf(Add(score, -top));
      sum = p.normalise ? SumOfChoices(weight, 0) : SumOfAll(top);
    }
    return Multiply(Divide(weight, sum), p.scale);
  }
};

// Grid: rows, a warp for each.
__global__ void __launch_bounds__(32) RouteKernel(const __grid_constant__ RouteParams p) {
  const int64_t row = BlockX();
  RouteWarp warp(p, row);
  warp.Choose();
  const float weight = warp.WeightOf();
  if (warp.lane < p.per_token) {
    p.chosen[row * p.per_token + warp.lane] = warp.choice;
    p.weights[row * p.per_token + warp.lane] = weight;
  }
  if (p.shared_weights == nullptr || warp.lane != 0) return;
  p.shared_weights[row] = p.count > p.experts ? SigmoidOf(warp.scores[p.experts]) : 1.0f;
}

// Each block counts the pairs of lower experts for itself, so that blocks need nothing from one
// another. Grid: experts. Shared memory: one word per warp.
__global__ void __launch_bounds__(kRowThreads) GroupKernel(const __grid_constant__ GroupParams p) {
  constexpr int kWarps = kRowThreads / 32;
  auto* board = reinterpret_cast<uint32_t*>(SharedMemory());
  const int32_t expert = BlockX();
  uint32_t lower = 0;
  for (int32_t i = ThreadX(); i < p.pairs; i += kRowThreads) lower += p.chosen[i] < expert ? 1 : 0;
  uint32_t next = BlockTotal<kWarps>(lower, board);
  if (ThreadX() == 0) {
    p.first[expert] = static_cast<int32_t>(next);
    if (expert == 0) p.first[p.experts] = p.pairs;
  }
  for (int32_t begin = 0; begin < p.pairs; begin += kRowThreads) {
    const int32_t i = begin + ThreadX();
    const bool mine = i < p.pairs && p.chosen[i] == expert;
    uint32_t total = 0;
    const uint32_t place = next + BlockBefore<kWarps>(mine ? 1 : 0, board, total);
    next += total;
    if (!mine) continue;
    p.rows[place] = i / p.per_token;
    p.places[i] = static_cast<int32_t>(place);
    p.owners[place] = expert;
  }
}

}  // namespace penstock::cuda
