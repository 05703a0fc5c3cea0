#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model/cuda/eviction/cuda_evictor.h"

namespace penstock {

// Evicts in pages whose heads are divided, in order, among several GPUs ("ranks"). Each GPU scores
// the keys of its own KV heads and moves their slots, all GPUs at once. A KV head's scores and
// slots have the bits that one GPU with all heads gives them; what is summed over all heads, the
// host sums.
class ShardedEvictor final : public KvEvictor {
 public:
  struct Rank {
    CudaEvictor* evictor = nullptr;  // outlives this
    PagedKv kv;                      // the rank's pages
  };
  // All ranks have equally many heads.
  explicit ShardedEvictor(std::vector<Rank> ranks) : ranks_(std::move(ranks)) {}

  // The pages of all arguments are those of the ranks together.
  void Score(const KeyScoresArgs& args) override;
  void AddAttention(const KeyScoresArgs& args) override;
  void Move(const EvictLayerArgs& args, std::span<const std::vector<uint32_t>> kept) override;
  const Exec& exec() const override { return exec_; }

 private:
  std::vector<KeyScoresArgs> Divide(const KeyScoresArgs& args) const;

  const std::vector<Rank> ranks_;
  const Exec exec_;  // the host's part is done by the calling thread
};

}  // namespace penstock
