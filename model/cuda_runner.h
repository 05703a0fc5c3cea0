#pragma once

#include <memory>

#include "kernels/cuda/cuda_device.h"
#include "model/cuda_weights.h"
#include "model/model_runner.h"

namespace penstock {

// The forward pass of the Llama family on a GPU. StepArgs::kv is an arena in device memory,
// StepArgs::logits is the host's; Step returns when they are there. One thread calls Step.
//
// A sequence's logits do not depend on the other sequences of its batch. By default they do depend,
// in the last bits, on whether its tokens come one by one or many at once: those are two kernels.
// With Options::exact all rows go through one, and the logits are those of any chunking.
class CudaRunner final : public ModelRunner {
 public:
  struct Options {
    int32_t max_step_tokens = 512;
    bool exact = false;
  };

  // `weights` and `device` outlive the runner; `weights` gives the configuration and is uploaded.
  // FAILED_PRECONDITION names what of the model the kernels do not take, RESOURCE_EXHAUSTED what
  // found no room.
  static absl::StatusOr<std::unique_ptr<CudaRunner>> Create(const Weights& weights,
                                                            cuda::CudaDevice& device,
                                                            const Options& options);
  ~CudaRunner() override;

  int32_t vocab() const override;
  KvLayout kv_layout() const override;
  int32_t max_position() const override;
  size_t device_bytes() const;  // of weights and scratch

  // As TransformerRunner's; INTERNAL is what CUDA says went wrong, after which nothing is certain.
  absl::Status Step(const StepArgs& args) override;

 private:
  struct Scratch;
  struct StepState;

  CudaRunner(const Weights& weights, cuda::CudaDevice& device, const Options& options);
  absl::Status Allocate();
  absl::Status Prepare(const StepArgs& args, StepState& state);
  absl::Status Enqueue(const StepArgs& args, StepState& state);
  void AppendKv(int32_t layer, const StepState& state);
  void Attend(int32_t layer, const StepState& state);
  void FinishLayer(const CudaLayer& layer, const StepState& state);
  void KeepLastRows(StepState& state);
  absl::Status Logits(const StepArgs& args, const StepState& state);
  absl::Status ReportLayers(const StepArgs& args);

  const ModelConfig& config_;
  const Weights& host_weights_;
  cuda::CudaDevice& device_;
  const Options options_;
  std::unique_ptr<CudaWeights> weights_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace penstock
