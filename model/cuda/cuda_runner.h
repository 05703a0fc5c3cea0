#pragma once

#include <memory>

#include "kernels/cuda/cuda_device.h"
#include "model/cuda/blend/blended_step.h"
#include "model/cuda/blend/cuda_blend.h"
#include "model/cuda/cuda_graphs.h"
#include "model/cuda/cuda_layers.h"
#include "model/cuda/eviction/cuda_evictor.h"
#include "model/cuda/eviction/observed_queries.h"
#include "model/forward/model_runner.h"

namespace penstock {

// The forward pass of the Llama family on one GPU. StepArgs::kv is an arena in device memory;
// StepArgs::logits and drawn are in host memory, and Step returns when they are complete. One
// thread calls Step.
//
// With a shard of the model, the runner is one rank of several, which all make the same steps; rank
// 0 makes the logits.
//
// The layer for multi-token prediction is computed behind the last one, from hidden states that
// stay on the device.
//
// This room, model/cuda, computes the forward pass on a GPU. It may use base/, kernels/,
// kernels/cpu, kernels/cuda, kernels/library, model/forward and model/sampler. It compiles without
// CUDA, and does not know NCCL, requests or scheduling.
class CudaRunner final : public ModelRunner, public MtpLayer {
 public:
  struct Options {
    int32_t max_step_tokens = 512;
    const cuda::Products* products = &cuda::OwnProducts();  // outlives the runner
    ModelShard shard;                                       // the part of the model on this GPU
    ProductExchange* exchange = nullptr;  // with the GPUs of the other shards; outlives the runner
    // Decode steps' shapes that are kept as graphs. 0 turns graphs off.
    size_t graphs_max = 32;
    int load_threads = 1;  // that read the weights
    // Memory for evictions of KV is allocated, where the model allows them.
    bool evicts = false;
    // Memory for bounds of pages is kept, where the model allows selections.
    bool selects = false;
    // Memory for blends is allocated, where the model and these options allow them.
    bool blends = false;
    // numerics=fast: the library's kernel computes attention of the rows of prompts
    // (SequenceStep::prompt), and the last bits of a sequence depend on where its prompt ends.
    bool fast_prompts = false;
  };

  // Uploads `weights` (CudaWeights), which are not needed afterwards. `device` outlives the runner.
  // Returns FAILED_PRECONDITION that names the part of the model that the kernels,
  // Options::products or Options::fast_prompts do not support, or RESOURCE_EXHAUSTED that names the
  // allocation.
  static absl::StatusOr<std::unique_ptr<CudaRunner>> Create(const Weights& weights,
                                                            cuda::CudaDevice& device,
                                                            const Options& options);
  ~CudaRunner() override;

  int32_t vocab() const override;
  KvLayout kv_layout() const override;
  int32_t max_position() const override;
  bool draws_tokens() const override { return true; }
  bool runs_beside_caller() const override { return true; }
  // Hidden states are those that products read: rounded to bf16.
  int32_t hidden_size() const override { return config_.hidden; }
  MtpLayer* mtp() override { return config_.use_mtp ? this : nullptr; }
  // Of this GPU's heads.
  std::optional<EvictionAttention> eviction_attention() const override;
  CudaEvictor* evictor() const { return evictor_.get(); }  // null: no evictions
  bool selects_pages() const override { return selector_ != nullptr; }
  // They move tokens of pages in bf16.
  std::optional<KeyRotations> key_rotations() const override;
  // The memory of a block's bounds, which KeepBounds allocates; 0: the runner keeps none.
  size_t BoundsBytes(const KvLayout& layout) const;
  // Takes selections from now on, of `kv`'s blocks, where BoundsBytes is not 0. RESOURCE_EXHAUSTED
  // that names the allocation.
  absl::Status KeepBounds(const PagedKv& kv);
  size_t weight_bytes() const { return weights_->bytes(); }  // on this GPU
  const CudaGraphs& graphs() const { return graphs_; }

  // Errors as in TransformerRunner::Step. INTERNAL reports a CUDA error, after which the device's
  // state is unknown.
  absl::Status Step(const StepArgs& args) override;
  // The same, beside those of TransformerRunner::StepMtp. It takes no evicted positions and no
  // selections, and is never a graph.
  absl::Status StepMtp(const StepArgs& args) override;

 private:
  CudaRunner(const Weights& weights, cuda::CudaDevice& device, const Options& options);
  absl::Status CheckProducts() const;
  StepReadiness Agree(const StepReadiness& own) const;
  bool MemoryMoved();
  absl::Status StepAsGraph(const StepArgs& args, CudaStep& step);
  absl::Status StepObserved(const StepArgs& args, CudaStep& step);
  absl::Status StepBlended(const StepArgs& args, CudaStep& step);
  absl::StatusOr<BlendedStep> CheckValues(const StepArgs& args, CudaStep& step);
  CudaBatch BatchOf(const StepArgs& args, bool joins = false) const;
  absl::Status Prepare(const StepArgs& args, CudaStep& step);
  StepRows AddRows(const CudaRows& of, StepInputs& inputs);
  void AddMtp(CudaStep& step, StepInputs& inputs);
  void BeginLayers(const StepRows& rows, const CudaAttention& attention, CudaStep& step);
  void BeginMtp(const StepRows& rows, const CudaAttention& attention, CudaStep& step);
  void Enqueue(const StepArgs& args, CudaStep& step);
  bool FinishLayer(int32_t layer, CudaStep& step);
  void FinishStep(const StepArgs& args, CudaStep& step);
  void MakeOutputs(const cuda::DeviceBuffer& norm, CudaStep& step);
  absl::Status AllocateEvictions();
  absl::Status AllocateBlends();
  absl::Status GrowScratch(const CudaBatch& batch);
  absl::Status GrowAttention(const CudaAttention& attention);
  absl::Status BeginSelection(const StepArgs& args, const CudaBatch& batch);
  absl::Status RunStep(const StepArgs& args, CudaStep& step);
  void CopyOutputs(const StepArgs& args, const CudaBatch& batch);
  void CopyHidden(const CudaBatch& batch);
  absl::Status Outputs(const StepArgs& args, const CudaStep& step);
  void Collect(const StepArgs& args, const CudaBatch& batch);
  void CollectHidden(const CudaBatch& batch) const;
  absl::Status ReportLayers(const StepArgs& args);
  CudaLayers layers();
  absl::Status CheckSpans(const KvPageFormat& format) const;
  absl::Status CheckPages(const PagedKv& kv) const;
  cuda::library::PrefillShape prompts() const;
  bool makes_logits() const { return options_.shard.rank == 0; }

  const ModelConfig config_;
  cuda::CudaDevice& device_;
  const Options options_;
  std::unique_ptr<CudaWeights> weights_;
  CudaScratch scratch_;
  std::vector<const void*> captured_;          // addresses of the scratch that graphs use
  CudaGraphs graphs_;                          // destroyed before the memory that graphs use
  std::unique_ptr<CudaEvictor> evictor_;       // null: no evictions
  std::unique_ptr<ObservedQueries> observed_;  // likewise
  std::unique_ptr<PageSelector> selector_;     // null: no selections
  std::unique_ptr<CudaBlend> blend_;           // null: no blends
  std::unique_ptr<DeviceCentre> centre_;       // null: the weights have no means of keys
};

}  // namespace penstock
