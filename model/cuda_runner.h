#pragma once

#include <memory>

#include "kernels/cuda/cuda_device.h"
#include "model/cuda_weights.h"
#include "model/model_runner.h"

namespace penstock {

// The forward pass of the Llama family on a GPU. StepArgs::kv is an arena in device memory,
// StepArgs::logits is the host's; Step returns when they are there. One thread calls Step.
//
// One kernel attends for many tokens of a sequence, another, which is the faster one there, for one
// token; their last bits differ. With Options::exact the former does both, and the logits are those
// of any chunking, as ModelRunner promises; without, that promise holds for the batch alone.
class CudaRunner final : public ModelRunner {
 public:
  struct Options {
    int32_t max_step_tokens = 512;
    bool exact = true;
  };

  // `weights` is uploaded and not needed afterwards; `device` outlives the runner.
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
  size_t LogitsBytes(size_t rows) const;  // of all slices

  const ModelConfig config_;
  cuda::CudaDevice& device_;
  const Options options_;
  std::unique_ptr<CudaWeights> weights_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace penstock
