#pragma once

#include <array>
#include <cstdint>

#include "router/placement/cost_models.h"

namespace penstock {

// Least squares with three non-negative coefficients that forgets: what was seen 200 observations
// ago counts for little. Not synchronised.
class OnlineFit {
 public:
  using Terms = std::array<double, 3>;

  // `prior`: coefficients until there is evidence; `scale`: a usual size of each term, which says
  // how strongly the prior holds.
  OnlineFit(const Terms& prior, const Terms& scale);

  // y is about coefficient . x. Large outliers (8 times what was predicted) are cut down.
  void Observe(const Terms& x, double y);
  const Terms& coefficients() const { return coefficients_; }
  uint64_t observations() const { return observations_; }

 private:
  void Solve();

  Terms scale_;
  Terms coefficients_;
  std::array<Terms, 3> products_{};  // of scaled terms, decayed
  Terms targets_{};
  uint64_t observations_ = 0;
};

// Fits PrefillModel from what workers report of each prompt.
class PrefillPredictor {
 public:
  PrefillPredictor();
  void Observe(uint32_t tokens, uint32_t cached, double ms);
  PrefillModel model() const;
  // Whether the model is more than a guess.
  bool known() const { return fit_.observations() >= 8; }

 private:
  OnlineFit fit_;
};

// Fits StepModel from the gaps between tokens.
class StepPredictor {
 public:
  StepPredictor();
  void Observe(double sequences, double context_tokens, double ms);
  StepModel model() const;
  bool known() const { return fit_.observations() >= 8; }

 private:
  OnlineFit fit_;
};

// Fits MoveModel from handoffs, or from reads of other workers' stores.
class MovePredictor {
 public:
  explicit MovePredictor(const MoveModel& prior = {.latency_ms = 1, .ms_per_token = 1e-3});
  void Observe(double tokens, double ms);
  MoveModel model() const;

 private:
  OnlineFit fit_;
};

}  // namespace penstock
