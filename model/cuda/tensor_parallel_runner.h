#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/sharded_pages.h"
#include "model/cuda/cuda_runner.h"
#include "model/cuda/rank_exchange.h"
#include "model/cuda/rank_threads.h"

namespace penstock {

// A model on several GPUs, each of which has a part of every layer (ModelShard) and computes on a
// thread of its own (docs/adr/0025). Pages are a ShardedPages. One thread calls Step.
//
// Logits are those of one GPU but for their last bits: a sum over parts is rounded elsewhere. For a
// number of GPUs they depend on what ModelRunner promises, and on nothing else.
class TensorParallelRunner final : public ModelRunner {
 public:
  // As CudaRunner; `devices` and `links` have as many ranks, and outlive it. FAILED_PRECONDITION
  // too where the model's heads cannot be shared, and whatever RankLinks says.
  static absl::StatusOr<std::unique_ptr<TensorParallelRunner>> Create(
      const Weights& weights, const std::vector<cuda::CudaDevice*>& devices, RankLinks& links,
      const CudaRunner::Options& options);

  // Where keys and values are: of this layout, with other block_tokens and dtype perhaps. Before
  // the first step; they outlive it.
  void SetPages(const cuda::ShardedPages& pages) { pages_ = &pages; }

  int32_t vocab() const override { return config_.vocab; }
  KvLayout kv_layout() const override;
  int32_t max_position() const override { return config_.max_position; }
  bool draws_tokens() const override { return true; }
  // Fatal where a GPU fails in the midst of a step: the others would wait for it forever.
  absl::Status Step(const StepArgs& args) override;

 private:
  struct Rank {
    std::unique_ptr<RankExchange> exchange;
    std::unique_ptr<CudaRunner> runner;
  };
  class Progress;

  TensorParallelRunner(const ModelConfig& config, RankLinks& links);
  absl::Status Open(int rank, const Weights& weights, cuda::CudaDevice& device,
                    const CudaRunner::Options& options);
  absl::Status StepOf(int rank, const StepArgs& args, Progress& progress);
  void CheckLinks() const;

  const ModelConfig config_;
  RankLinks& links_;
  RankBarrier meeting_;
  std::vector<Rank> ranks_;
  const cuda::ShardedPages* pages_ = nullptr;
  RankThreads threads_;
};

}  // namespace penstock
