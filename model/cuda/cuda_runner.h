#pragma once

#include <memory>

#include "kernels/cuda/cuda_device.h"
#include "model/cuda/cuda_graphs.h"
#include "model/cuda/cuda_layers.h"
#include "model/forward/model_runner.h"

namespace penstock {

// The forward pass of the Llama family on a GPU. StepArgs::kv is an arena in device memory,
// StepArgs::logits and drawn are the host's; Step returns when they are there. One thread calls
// Step.
//
// One kernel attends for many tokens of a sequence, another, which is the faster one there, for one
// token; their last bits differ. With Options::exact the former does both, and the logits are those
// of any chunking, as ModelRunner promises; without, that promise holds for the batch alone.
//
// With a part of the model it is one rank of several, which all make the same steps; logits come
// from the first.
class CudaRunner final : public ModelRunner {
 public:
  struct Options {
    int32_t max_step_tokens = 512;
    bool exact = true;
    ModelShard shard;                     // what of the model is here
    ProductExchange* exchange = nullptr;  // with the GPUs that have the rest; outlives the runner
    // Shapes of steps of single tokens that are kept as graphs; 0, or an exchange: none is.
    size_t graphs_max = 32;
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
  bool draws_tokens() const override { return true; }
  size_t device_bytes() const;  // of weights and scratch
  const CudaGraphs& graphs() const { return graphs_; }

  // As TransformerRunner's; INTERNAL is what CUDA says went wrong, after which nothing is certain.
  absl::Status Step(const StepArgs& args) override;

 private:
  CudaRunner(const Weights& weights, cuda::CudaDevice& device, const Options& options);
  absl::Status StepAsGraph(const StepArgs& args, CudaStep& step);
  absl::Status Prepare(const StepArgs& args, CudaStep& step);
  void Enqueue(const StepArgs& args, CudaStep& step);
  absl::Status GrowScratch(const CudaBatch& batch);
  absl::Status Outputs(const StepArgs& args, const CudaStep& step);
  void Collect(const StepArgs& args, const CudaBatch& batch);
  absl::Status ReportLayers(const StepArgs& args);
  CudaLayers layers();
  bool makes_logits() const { return options_.shard.rank == 0; }

  const ModelConfig config_;
  cuda::CudaDevice& device_;
  const Options options_;
  std::unique_ptr<CudaWeights> weights_;
  CudaScratch scratch_;
  std::vector<const void*> captured_;  // the scratch that graphs name
  CudaGraphs graphs_;                  // after what they name
};

}  // namespace penstock
