#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "model/weights/model_shard.h"
#include "model/weights/weights.h"

namespace penstock {

// The matrices of a shard's heads of a layer, wherever the host has them. `config`, which is the
// whole model's, and `weights` outlive it.
class LatentHeads {
 public:
  enum class Kind : uint8_t { kQueries, kValues };  // as in LatentWeights
  LatentHeads(const ModelConfig& config, const LatentWeights& weights, const ModelShard& shard)
      : heads_(shard.Heads(config.heads)),
        first_(shard.rank * heads_),
        config_(config.latent),
        weights_(weights) {}

  int64_t heads() const { return heads_; }
  int32_t outputs(Kind kind) const {
    return kind == Kind::kQueries ? config_.rank : config_.value_dims;
  }
  int32_t inputs(Kind kind) const {
    return kind == Kind::kQueries ? config_.plain_dims : config_.rank;
  }
  // Writes the matrix of the shard's head `index` to `to`, [outputs][inputs]. Exact: all of them
  // are bf16.
  void Read(Kind kind, int64_t index, Bf16* to) const;

 private:
  void ReadQueriesOfUp(int64_t head, Bf16* to) const;
  void ReadValuesOfUp(int64_t head, Bf16* to) const;

  const int64_t heads_;
  const int64_t first_;  // of all heads
  const LatentConfig& config_;
  const LatentWeights& weights_;
};

}  // namespace penstock
