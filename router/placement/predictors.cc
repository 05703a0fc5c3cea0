#include "router/placement/predictors.h"

#include <algorithm>
#include <cmath>

namespace penstock {
namespace {

constexpr double kForget = 0.995;
constexpr double kOutlier = 8;

using Terms = OnlineFit::Terms;

// Solves a 3x3 system by Gauss-Jordan elimination over the `used` unknowns. An unknown without a
// positive pivot is 0.
Terms SolveSystem(std::array<Terms, 3> a, Terms b, const std::array<bool, 3>& used) {
  for (size_t i = 0; i < 3; ++i) {
    if (!used[i] || a[i][i] <= 0) continue;
    for (size_t j = 0; j < 3; ++j) {
      if (j == i || !used[j]) continue;
      const double factor = a[j][i] / a[i][i];
      for (size_t k = 0; k < 3; ++k) a[j][k] -= factor * a[i][k];
      b[j] -= factor * b[i];
    }
  }
  Terms x{};
  for (size_t i = 0; i < 3; ++i) x[i] = used[i] && a[i][i] > 0 ? b[i] / a[i][i] : 0;
  return x;
}

double Dot(const Terms& a, const Terms& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

}  // namespace

// The prior enters as one observation of each term at its typical value, and decays like the
// others.
OnlineFit::OnlineFit(const Terms& prior, const Terms& scale) : scale_(scale), coefficients_(prior) {
  for (size_t i = 0; i < 3; ++i) {
    products_[i][i] = 1;
    targets_[i] = prior[i] * scale[i];
  }
}

void OnlineFit::Observe(const Terms& x, double y) {
  if (!std::isfinite(y) || y < 0) return;
  ++observations_;
  if (observations_ > 32) y = std::min(y, kOutlier * Dot(x, coefficients_));
  Terms scaled;
  for (size_t i = 0; i < 3; ++i) scaled[i] = x[i] / scale_[i];
  for (size_t i = 0; i < 3; ++i) {
    targets_[i] = kForget * targets_[i] + scaled[i] * y;
    for (size_t j = 0; j < 3; ++j) {
      products_[i][j] = kForget * products_[i][j] + scaled[i] * scaled[j];
    }
  }
  Solve();
}

// Non-negative least squares by a simple active set: solves the normal equations, removes the most
// negative coefficient, and solves again for the rest. At most 3 rounds.
void OnlineFit::Solve() {
  std::array<bool, 3> used{true, true, true};
  for (int round = 0; round < 3; ++round) {
    std::array<Terms, 3> products = products_;
    // Ridge term: keeps the system solvable when all observations are equal.
    for (size_t i = 0; i < 3; ++i) products[i][i] *= 1 + 1e-9;
    const Terms x = SolveSystem(products, targets_, used);
    const size_t min = static_cast<size_t>(std::min_element(x.begin(), x.end()) - x.begin());
    for (size_t i = 0; i < 3; ++i) coefficients_[i] = std::max(0.0, x[i]) / scale_[i];
    if (x[min] >= 0) return;
    used[min] = false;
  }
}

PrefillPredictor::PrefillPredictor() : fit_({5, 0.2, 0}, {1, 1000, 1e7}) {}

void PrefillPredictor::Observe(uint32_t tokens, uint32_t cached, double ms) {
  const double n = tokens;
  const double p = cached;
  fit_.Observe({1, n - p, n * n - p * p}, ms);
}

PrefillModel PrefillPredictor::model() const {
  const OnlineFit::Terms& c = fit_.coefficients();
  return {.base_ms = c[0], .ms_per_token = c[1], .ms_per_square = c[2]};
}

StepPredictor::StepPredictor() : fit_({10, 0.1, 1e-5}, {1, 10, 1e5}) {}

void StepPredictor::Observe(double sequences, double context_tokens, double ms) {
  fit_.Observe({1, sequences, context_tokens}, ms);
}

StepModel StepPredictor::model() const {
  const OnlineFit::Terms& c = fit_.coefficients();
  return {.base_ms = c[0], .ms_per_sequence = c[1], .ms_per_context_token = c[2]};
}

MovePredictor::MovePredictor(const MoveModel& prior)
    : fit_({prior.latency_ms, prior.ms_per_token, 0}, {1, 1000, 1}) {}

void MovePredictor::Observe(double tokens, double ms) { fit_.Observe({1, tokens, 0}, ms); }

MoveModel MovePredictor::model() const {
  return {.latency_ms = fit_.coefficients()[0], .ms_per_token = fit_.coefficients()[1]};
}

}  // namespace penstock
