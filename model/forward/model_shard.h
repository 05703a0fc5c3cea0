#pragma once

#include <cstdint>

#include "base/status.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// Which part of a model a GPU has, of `ranks` that compute together: as many heads of queries, keys
// and values as the others, in order, with the inputs of the attention's output that are theirs,
// and a range of the MLP's intermediate values. Norms and the embedding each has whole, the output
// matrix the first.
struct ModelShard {
  int rank = 0;
  int ranks = 1;

  // Of `heads` heads: how many.
  int32_t Heads(int32_t heads) const { return heads / ranks; }
  // Of the intermediate values, which are padded to a multiple of 16: how many. The last rank's
  // range may end behind the last of them.
  int64_t Width(int64_t intermediate) const {
    const int64_t each = (intermediate + ranks - 1) / ranks;
    return ranks == 1 ? intermediate : (each + 15) / 16 * 16;
  }
  // The sizes of this part.
  ModelConfig Of(const ModelConfig& whole) const {
    ModelConfig part = whole;
    part.heads = Heads(whole.heads);
    part.kv_heads = Heads(whole.kv_heads);
    return part;
  }
};

// FAILED_PRECONDITION: so many GPUs cannot share the heads.
inline absl::Status CheckShards(const ModelConfig& config, int ranks) {
  if (config.kv_heads % ranks == 0 && config.heads % ranks == 0) return absl::OkStatus();
  return FailedPrecondition(
      "tensor_parallel is {}, and the model has {} KV heads, which so many GPUs cannot share; take "
      "a divisor of that",
      ranks, config.kv_heads);
}

}  // namespace penstock
