#pragma once

#include <memory>

#include "kernels/device.h"
#include "model/forward/model_runner.h"
#include "model/forward/weights.h"

namespace penstock {

// The forward pass of the Llama family (Llama 2/3, Mistral, Qwen2, Qwen3) on CPUs. Owns scratch for
// `max_step_tokens` tokens, allocated once. One thread calls Step.
class TransformerRunner final : public ModelRunner {
 public:
  // `weights` and `exec.threads` outlive the runner.
  TransformerRunner(const Weights& weights, const Exec& exec, int32_t max_step_tokens);
  ~TransformerRunner() override;

  int32_t vocab() const override;
  KvLayout kv_layout() const override;
  int32_t max_position() const override;
  int32_t max_step_tokens() const;  // total over the sequences of a step
  size_t scratch_bytes() const;

  // Returns INVALID_ARGUMENT, before anything is written, that names the value out of range: a
  // token, position, block table, layout, shape of the logits, or more than max_step_tokens()
  // tokens.
  absl::Status Step(const StepArgs& args) override;

 private:
  struct Scratch;
  struct Batch;

  absl::Status Check(const StepArgs& args) const;
  void Prepare(const StepArgs& args, Batch& batch);
  void AppendKv(const StepArgs& args, int32_t layer, const Batch& batch);
  void Attend(const StepArgs& args, int32_t layer, const Batch& batch);
  void KeepLastRows(Batch& batch);
  void FinishLayer(int32_t layer, const Batch& batch);
  void Logits(const StepArgs& args, const Batch& batch);

  const Weights& weights_;
  const Exec exec_;
  const std::unique_ptr<Scratch> scratch_;
};

}  // namespace penstock
