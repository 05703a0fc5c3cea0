#pragma once

#include "model/forward/model_runner.h"
#include "router/placement/cost_models.h"

namespace penstock {

// The times of one worker's steps.
struct StepTimes {
  PrefillModel prefill;  // its base is paid for each step with prompts
  StepModel decode;
  bool none = false;  // every step takes no time
};

// The model of a simulated worker: it takes the time of a step and computes nothing. KV pages are
// never touched, and the next token is always the same letter.
class TimedRunner final : public ModelRunner {
 public:
  // Sizes of a page, as small as they can be: they are moved for real.
  static constexpr KvLayout kLayout{.layers = 4, .kv_heads = 1, .head_dim = 1, .block_tokens = 512};
  static constexpr double kBytesPerToken = 4 * 2 * 2;  // layers, keys and values, bf16

  TimedRunner(const StepTimes& times, int32_t max_position)
      : times_(times), max_position_(max_position) {}

  int32_t vocab() const override;
  KvLayout kv_layout() const override { return kLayout; }
  int32_t max_position() const override { return max_position_; }
  absl::Status Step(const StepArgs& args) override;

  double busy_ms() const { return busy_ms_; }
  // The sum of the time of each step times its sequences that decode.
  double sequence_ms() const { return sequence_ms_; }

 private:
  double StepMs(const StepArgs& args) const;

  const StepTimes times_;
  const int32_t max_position_;
  double busy_ms_ = 0;
  double sequence_ms_ = 0;
};

}  // namespace penstock
