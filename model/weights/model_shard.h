#pragma once

#include <cstdint>

#include "base/status.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// The part of a model that one GPU of a tensor-parallel group holds (Megatron-LM: Shoeybi et al.,
// arXiv 1909.08053). Each of `ranks` GPUs has an equal number of consecutive heads of queries, keys
// and values, the inputs of the attention output that belong to them, and a range of the
// intermediate values of the MLP or of each expert. Every rank has all norms and the embedding;
// rank 0 has the output matrix.
struct ModelShard {
  int rank = 0;
  int ranks = 1;

  // This rank's share of `heads` heads.
  int32_t Heads(int32_t heads) const { return heads / ranks; }
  // This rank's share of the intermediate values, rounded up to a multiple of `unit`. The ranges of
  // the last ranks may extend beyond the last value.
  int64_t Width(int64_t intermediate, int64_t unit) const {
    const int64_t each = (intermediate + ranks - 1) / ranks;
    return ranks == 1 ? intermediate : (each + unit - 1) / unit * unit;
  }
  // The sizes of this part.
  ModelConfig Of(const ModelConfig& whole) const {
    ModelConfig part = whole;
    part.heads = Heads(whole.heads);
    part.kv_heads = Heads(whole.kv_heads);
    return part;
  }
};

// Returns FAILED_PRECONDITION if the heads cannot be divided among `ranks` GPUs.
inline absl::Status CheckShards(const ModelConfig& config, int ranks) {
  if (config.kv_heads % ranks == 0 && config.heads % ranks == 0) return absl::OkStatus();
  return FailedPrecondition(
      "tensor_parallel is {}, which does not divide the model's {} KV heads; set a divisor of that "
      "number",
      ranks, config.kv_heads);
}

}  // namespace penstock
