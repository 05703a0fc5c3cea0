#pragma once

#include "base/clock.h"
#include "base/metrics/metrics.h"
#include "base/progress.h"
#include "model/forward/model_runner.h"

namespace penstock {

// Steps of an engine.
struct StepMetrics {
  // `phase`: prefill or decode.
  StepMetrics(MetricsRegistry& registry, const std::string& phase);

  prometheus::Histogram& tokens;
  prometheus::Histogram& duration;
  prometheus::Counter& computed;  // tokens
  prometheus::Counter& answers;   // rows of logits, drawn from or given
};

// A model runner that counts what it runs and beats with every group of layers, so that a long step
// is not taken for a stall. The engine's thread.
class MeteredRunner final : public ModelRunner {
 public:
  // All outlive it.
  MeteredRunner(ModelRunner& runner, const Clock& clock, Progress& progress, StepMetrics metrics)
      : runner_(runner), clock_(clock), progress_(progress), metrics_(metrics) {}

  int32_t vocab() const override { return runner_.vocab(); }
  KvLayout kv_layout() const override { return runner_.kv_layout(); }
  int32_t max_position() const override { return runner_.max_position(); }
  bool draws_tokens() const override { return runner_.draws_tokens(); }
  absl::Status Step(const StepArgs& args) override;
  // Computed since the start. Any thread.
  uint64_t tokens() const { return static_cast<uint64_t>(metrics_.computed.Value()); }

 private:
  ModelRunner& runner_;
  const Clock& clock_;
  Progress& progress_;
  StepMetrics metrics_;
};

}  // namespace penstock
