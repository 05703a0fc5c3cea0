#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/experts.h"

namespace penstock::cpu {
namespace {

constexpr int64_t kScoresPerTask = 32;

// The expert with the highest score that is not in [chosen, end); the lowest id of equal ones.
int32_t BestExpert(const float* scores, int64_t experts, const int32_t* chosen,
                   const int32_t* end) {
  int32_t best = -1;
  for (int32_t e = 0; e < experts; ++e) {
    if (best >= 0 && !(scores[e] > scores[best])) continue;
    if (std::find(chosen, end, e) == end) best = e;
  }
  return best;
}

void AddBias(const RouteArgs& args, int64_t token) {
  if (args.bias.data == nullptr) return;
  float* scores = args.scores.row(token);
  for (int64_t e = 0; e < args.router.dim(0); ++e) scores[e] += args.bias.data[e];
}

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// True if experts are not simply chosen by their scores.
bool HasKeys(const RouteArgs& args) { return args.sigmoid || args.groups > 1; }

// The numbers that a token's experts are chosen by, without those of the groups that are left out.
std::vector<float> Keys(const RouteArgs& args, const float* scores) {
  std::vector<float> keys(scores, scores + args.router.dim(0));
  for (size_t e = 0; args.sigmoid && e < keys.size(); ++e) {
    keys[e] = Sigmoid(keys[e]) + (args.choice_bias.data == nullptr ? 0 : args.choice_bias.data[e]);
  }
  return keys;
}

float GroupKey(const RouteArgs& args, const float* keys, int64_t size) {
  float best = -std::numeric_limits<float>::infinity(), second = best;
  for (int64_t e = 0; e < size; ++e) {
    if (keys[e] > best) {
      second = std::exchange(best, keys[e]);
    } else if (keys[e] > second) {
      second = keys[e];
    }
  }
  return args.sigmoid ? best + second : best;
}

void LeaveOutGroups(const RouteArgs& args, std::vector<float>& keys) {
  const int64_t size = std::ssize(keys) / args.groups;
  std::vector<float> groups;
  for (int32_t g = 0; g < args.groups; ++g) {
    groups.push_back(GroupKey(args, keys.data() + g * size, size));
  }
  std::vector<int32_t> kept(static_cast<size_t>(args.kept_groups));
  for (int32_t& group : kept) {
    group = BestExpert(groups.data(), args.groups, kept.data(), &group);
  }
  for (int32_t g = 0; g < args.groups; ++g) {
    if (std::find(kept.begin(), kept.end(), g) != kept.end()) continue;
    std::fill_n(keys.begin() + g * size, size, -std::numeric_limits<float>::infinity());
  }
}

// The sum runs in the order of choice.
void WeighBySigmoid(const RouteArgs& args, int64_t token) {
  const int32_t* chosen = args.chosen.row(token);
  const float* scores = args.scores.row(token);
  float* weights = args.weights.row(token);
  const int64_t count = args.chosen.dim(1);
  float sum = 1e-20f;  // as in training: no division by zero
  for (int64_t i = 0; i < count; ++i) sum += weights[i] = Sigmoid(scores[chosen[i]]);
  for (int64_t i = 0; i < count; ++i) {
    weights[i] = (args.normalise ? weights[i] / sum : weights[i]) * args.scale;
  }
}

// Softmax weights: the sums run in ascending order of experts, or in the order of choice.
void Weigh(const RouteArgs& args, int64_t token) {
  const int32_t* chosen = args.chosen.row(token);
  const float* scores = args.scores.row(token);
  float* weights = args.weights.row(token);
  const int64_t count = args.chosen.dim(1);
  const float top = scores[chosen[0]];
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) weights[i] = std::exp(scores[chosen[i]] - top);
  if (args.normalise) {
    for (int64_t i = 0; i < count; ++i) sum += weights[i];
  } else {
    for (int64_t e = 0; e < args.router.dim(0); ++e) sum += std::exp(scores[e] - top);
  }
  for (int64_t i = 0; i < count; ++i) weights[i] = weights[i] / sum * args.scale;
}

void Choose(const RouteArgs& args, const float* keys, int32_t* chosen) {
  for (int64_t i = 0; i < args.chosen.dim(1); ++i) {
    chosen[i] = BestExpert(keys, args.router.dim(0), chosen, chosen + i);
  }
}

}  // namespace

void ScoreRows(const Exec& exec, const ScoreRowsArgs& args) {
  const SimdOps& simd = ActiveSimd();
  const int64_t scores = args.vectors.dim(0), hidden = args.vectors.dim(1);
  const int64_t parts = (scores + kScoresPerTask - 1) / kScoresPerTask;
  ParallelFor(exec, args.input.dim(0) * parts, [&](int64_t task, int) {
    const int64_t token = task / parts, first = task % parts * kScoresPerTask;
    for (int64_t i = first; i < std::min(scores, first + kScoresPerTask); ++i) {
      args.output.row(token)[i] = simd.dot(args.input.row(token), args.vectors.row(i), hidden);
    }
  });
}

void Route(const Exec& exec, const RouteArgs& args) {
  PENSTOCK_CHECK_EQ(args.router.dim(0) % args.groups, 0);
  PENSTOCK_CHECK_LE(args.chosen.dim(1), args.router.dim(0) / args.groups * args.kept_groups);
  cpu::ScoreRows(exec, {.input = args.input, .vectors = args.router, .output = args.scores});
  ParallelFor(exec, args.input.dim(0), [&](int64_t token, int) {
    AddBias(args, token);
    if (HasKeys(args)) {
      std::vector<float> keys = Keys(args, args.scores.row(token));
      if (args.groups > 1) LeaveOutGroups(args, keys);
      Choose(args, keys.data(), args.chosen.row(token));
    } else {
      Choose(args, args.scores.row(token), args.chosen.row(token));
    }
    args.sigmoid ? WeighBySigmoid(args, token) : Weigh(args, token);
  });
}

}  // namespace penstock::cpu
