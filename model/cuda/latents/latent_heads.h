#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "model/weights/weights.h"

namespace penstock {

// The matrices of a layer's heads, wherever the host has them. `config` and `weights` outlive it.
class LatentHeads {
 public:
  enum class Kind : uint8_t { kQueries, kValues };  // as in LatentWeights
  LatentHeads(const ModelConfig& config, const LatentWeights& weights)
      : heads_(config.heads), config_(config.latent), weights_(weights) {}

  int64_t heads() const { return heads_; }
  int32_t outputs(Kind kind) const {
    return kind == Kind::kQueries ? config_.rank : config_.value_dims;
  }
  int32_t inputs(Kind kind) const {
    return kind == Kind::kQueries ? config_.plain_dims : config_.rank;
  }
  // Writes a head's matrix to `to`, [outputs][inputs]. Exact: all of them are bf16.
  void Read(Kind kind, int64_t head, Bf16* to) const;

 private:
  void ReadQueriesOfUp(int64_t head, Bf16* to) const;
  void ReadValuesOfUp(int64_t head, Bf16* to) const;

  const int64_t heads_;
  const LatentConfig& config_;
  const LatentWeights& weights_;
};

}  // namespace penstock
