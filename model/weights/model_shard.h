#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// The part of a model that one GPU of a tensor-parallel group holds (Megatron-LM: Shoeybi et al.,
// arXiv 1909.08053). Each of `ranks` GPUs has an equal number of consecutive heads of queries, keys
// and values, the inputs of the attention output that belong to them, and a range of the
// intermediate values of the MLP or of each expert. Every rank has all norms and the embedding;
// rank 0 has the output matrix. Of latents every rank has the whole, and so it has the matrices
// that the input is multiplied by to get them, and those of its heads only of what reads them.
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
    if (!whole.HasLatents()) part.kv_heads = Heads(whole.kv_heads);
    return part;
  }
};

// The heads that the ranks have equal numbers of: those of KV, which divide the others; or those of
// queries, if all of them read the same latents.
struct DividedHeads {
  int32_t count = 0;
  std::string_view name;
};
inline DividedHeads DividedHeadsOf(const ModelConfig& config) {
  if (config.HasLatents()) return {.count = config.heads, .name = "attention heads"};
  return {.count = config.kv_heads, .name = "KV heads"};
}

// Returns FAILED_PRECONDITION if the heads cannot be divided among `ranks` GPUs.
inline absl::Status CheckShards(const ModelConfig& config, int ranks) {
  const DividedHeads heads = DividedHeadsOf(config);
  if (heads.count % ranks == 0) return absl::OkStatus();
  return FailedPrecondition(
      "tensor_parallel is {}, which does not divide the model's {} {}; set a divisor of that "
      "number",
      ranks, heads.count, heads.name);
}

}  // namespace penstock
