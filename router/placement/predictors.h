#pragma once

#include <array>
#include <cstdint>

#include "router/placement/cost_models.h"

namespace penstock {

// Exponentially weighted recursive least squares with three non-negative coefficients. The weight
// of an observation decays by 0.995 with each later one: to 1/e after 200. The caller synchronizes.
class OnlineFit {
 public:
  using Terms = std::array<double, 3>;

  // `prior`: the coefficients before the first observation. `scale`: a typical value of each term;
  // the prior weighs as much as one observation of that value.
  OnlineFit(const Terms& prior, const Terms& scale);

  // Adds an observation of y = coefficients . x. After 32 observations, y is clipped to 8 times its
  // prediction, against outliers. A negative or infinite y is ignored.
  void Observe(const Terms& x, double y);
  const Terms& coefficients() const { return coefficients_; }
  uint64_t observations() const { return observations_; }

 private:
  void Solve();

  Terms scale_;
  Terms coefficients_;
  std::array<Terms, 3> products_{};  // decayed sum of x x^T, of scaled terms
  Terms targets_{};
  uint64_t observations_ = 0;
};

// Fits PrefillModel to the compute times of prompts that workers report (FirstTokens.compute_ms).
class PrefillPredictor {
 public:
  PrefillPredictor();
  void Observe(uint32_t tokens, uint32_t cached, double ms);
  PrefillModel model() const;
  // True when enough prompts were observed that the model is more than its prior.
  bool known() const { return fit_.observations() >= 8; }

 private:
  OnlineFit fit_;
};

// Fits StepModel to the step times between two states of a decode worker.
class StepPredictor {
 public:
  StepPredictor();
  void Observe(double sequences, double context_tokens, double ms);
  StepModel model() const;
  bool known() const { return fit_.observations() >= 8; }

 private:
  OnlineFit fit_;
};

// Fits MoveModel to handoffs, or to reads from other workers' stores.
class MovePredictor {
 public:
  explicit MovePredictor(const MoveModel& prior = {.latency_ms = 1, .ms_per_token = 1e-3});
  void Observe(double tokens, double ms);
  MoveModel model() const;

 private:
  OnlineFit fit_;
};

}  // namespace penstock
