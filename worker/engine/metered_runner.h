#pragma once

#include <atomic>

#include "base/clock.h"
#include "base/metrics/metrics.h"
#include "base/progress.h"
#include "model/forward/model_runner.h"

namespace penstock {

// Metrics of an engine's steps.
struct StepMetrics {
  // `phase`: prefill or decode.
  StepMetrics(MetricsRegistry& registry, const std::string& phase);

  prometheus::Histogram& tokens;
  prometheus::Histogram& duration;
  prometheus::Counter& computed;  // tokens
  prometheus::Counter& answers;   // sampled tokens
};

// A model runner that counts its steps and beats with every group of layers, so that a long step
// does not look like a stall. Used by the engine's thread.
class MeteredRunner final : public ModelRunner {
 public:
  // All outlive the runner.
  MeteredRunner(ModelRunner& runner, const Clock& clock, Progress& progress, StepMetrics metrics)
      : runner_(runner), clock_(clock), progress_(progress), metrics_(metrics) {}

  int32_t vocab() const override { return runner_.vocab(); }
  KvLayout kv_layout() const override { return runner_.kv_layout(); }
  int32_t max_position() const override { return runner_.max_position(); }
  bool draws_tokens() const override { return runner_.draws_tokens(); }
  int32_t hidden_size() const override { return runner_.hidden_size(); }
  MtpLayer* mtp() override { return runner_.mtp(); }
  std::optional<EvictionAttention> eviction_attention() const override {
    return runner_.eviction_attention();
  }
  std::optional<KeyRotations> key_rotations() const override { return runner_.key_rotations(); }
  bool selects_pages() const override { return runner_.selects_pages(); }
  bool runs_beside_caller() const override { return runner_.runs_beside_caller(); }
  absl::Status Step(const StepArgs& args) override;
  // Counts guesses (StepArgs) of past steps that were right.
  void CountRight(int64_t guesses) { metrics_.answers.Increment(static_cast<double>(guesses)); }
  // Tokens computed since the start. Any thread.
  uint64_t tokens() const { return static_cast<uint64_t>(metrics_.computed.Value()); }
  // Time in steps since the start, in microseconds. Any thread.
  uint64_t busy_us() const { return busy_us_.load(std::memory_order_relaxed); }

 private:
  ModelRunner& runner_;
  const Clock& clock_;
  Progress& progress_;
  StepMetrics metrics_;
  std::atomic<uint64_t> busy_us_{0};
};

}  // namespace penstock
