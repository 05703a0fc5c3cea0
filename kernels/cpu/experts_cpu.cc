#include <algorithm>
#include <cmath>

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
  for (int64_t i = 0; i < count; ++i) weights[i] /= sum;
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
  cpu::ScoreRows(exec, {.input = args.input, .vectors = args.router, .output = args.scores});
  ParallelFor(exec, args.input.dim(0), [&](int64_t token, int) {
    AddBias(args, token);
    int32_t* chosen = args.chosen.row(token);
    for (int64_t i = 0; i < args.chosen.dim(1); ++i) {
      chosen[i] = BestExpert(args.scores.row(token), args.router.dim(0), chosen, chosen + i);
    }
    Weigh(args, token);
  });
}

}  // namespace penstock::cpu
