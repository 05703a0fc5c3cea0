#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kernels/cuda/sharded/sharded_pages.h"
#include "model/cuda/cuda_runner.h"
#include "model/cuda/eviction/joined_queries.h"
#include "model/cuda/eviction/sharded_evictor.h"
#include "model/cuda/ranks/rank_exchange.h"
#include "model/cuda/ranks/rank_threads.h"

namespace penstock {

// The forward pass on several GPUs (docs/adr/0025). Each GPU has a shard of every layer
// (ModelShard) and a thread of its own. Pages are a ShardedPages. One thread calls Step.
//
// The last bits of the logits differ from those of one GPU, because a sum over shards is rounded
// elsewhere. For a given number of GPUs, ModelRunner's contract holds.
//
// This room, model/cuda/ranks, combines the GPUs of a tensor-parallel group. It may use base/,
// kernels/cuda with its sharded room, model/cuda with its eviction room, and model/weights. It does
// not know NCCL, requests or scheduling.
class TensorParallelRunner final : public ModelRunner, public MtpLayer {
 public:
  // As CudaRunner::Create. `devices` and `links` have equally many ranks and outlive the runner.
  // Also returns FAILED_PRECONDITION if the model's heads cannot be divided, and errors of
  // RankLinks.
  static absl::StatusOr<std::unique_ptr<TensorParallelRunner>> Create(
      const Weights& weights, const std::vector<cuda::CudaDevice*>& devices, RankLinks& links,
      const CudaRunner::Options& options);

  // Sets the pages, which outlive the runner; their block_tokens and dtype may differ from
  // kv_layout(). Called once, before the first step and before eviction_attention. Each GPU keeps
  // the bounds of its heads' pages (CudaRunner::KeepBounds), whose errors it returns.
  absl::Status SetPages(const cuda::ShardedPages& pages);

  int32_t vocab() const override { return config_.vocab; }
  KvLayout kv_layout() const override;
  int32_t max_position() const override { return config_.max_position; }
  bool draws_tokens() const override { return true; }
  bool runs_beside_caller() const override { return true; }
  int32_t hidden_size() const override { return config_.hidden; }
  MtpLayer* mtp() override { return config_.use_mtp ? this : nullptr; }
  // Of the heads of all GPUs.
  std::optional<EvictionAttention> eviction_attention() const override;
  bool selects_pages() const override { return ranks_.front().runner->selects_pages(); }
  // As CudaRunner::BoundsBytes, of one GPU's pages.
  size_t BoundsBytes(const KvLayout& layout) const {
    return ranks_.front().runner->BoundsBytes(layout);
  }
  size_t weight_bytes() const;  // on all GPUs
  // The graphs of the first GPU; the others have equally many.
  const CudaGraphs& graphs() const { return ranks_.front().runner->graphs(); }
  // Ends the process if a GPU fails during a step: the other GPUs would wait for it forever.
  absl::Status Step(const StepArgs& args) override;
  absl::Status StepMtp(const StepArgs& args) override;

 private:
  struct Rank {
    std::unique_ptr<RankExchange> exchange;
    std::unique_ptr<CudaRunner> runner;
  };
  class Progress;
  using StepCall = absl::Status (CudaRunner::*)(const StepArgs& args);

  TensorParallelRunner(const ModelConfig& config, RankLinks& links);
  absl::Status Open(int rank, const Weights& weights, cuda::CudaDevice& device,
                    const CudaRunner::Options& options);
  absl::Status StepOf(int rank, StepCall call, const StepArgs& args, Progress& progress);
  void GiveQueries(int rank, const StepArgs& args, View<const float, 2> queries,
                   Progress& progress);
  void Report(const StepArgs& args, Progress& progress);
  bool Await(int reports, Progress& progress) const;
  void CheckLinks() const;

  const ModelConfig config_;
  RankLinks& links_;
  RankBarrier barrier_;
  std::vector<Rank> ranks_;
  const cuda::ShardedPages* pages_ = nullptr;
  std::unique_ptr<ShardedEvictor> evictor_;  // null: no evictions
  std::unique_ptr<JoinedQueries> queries_;   // likewise
  RankThreads threads_;
};

}  // namespace penstock
