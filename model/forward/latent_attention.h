#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention.h"
#include "kernels/buffer.h"
#include "kernels/device.h"
#include "kernels/gemm.h"
#include "kernels/paged_kv.h"
#include "kernels/rope.h"
#include "model/weights/weights.h"

namespace penstock {

// The parts of multi-head latent attention around the kernel of attention: from a layer's input to
// queries and latents, and from what attention adds up to the heads' outputs. Every token, of a
// prompt or not, takes the same way, so that its bits do not depend on the step that computes it.
// Owns its memory. One thread calls it.
class LatentAttention {
 public:
  // Needs no memory for a model without latents.
  LatentAttention(const ModelConfig& config, const Exec& exec, int64_t max_tokens);

  // The arguments of Append.
  struct Input {
    const LayerWeights& layer;
    View<const float, 2> rows;  // [tokens, hidden]
    View<const float, 2> cosines, sines;
    View<float, 2> queries;  // out, [tokens, heads * query dims]
    PagedKv kv;
    int32_t index = 0;  // of the layer
    std::span<const KvSlot> slots;
    const GemmScratch* gemm = nullptr;
  };
  // Computes queries and latents, and writes the latents to their pages.
  void Append(const Input& input);

  // args.queries are those of Append and args.output is [tokens, heads * value dims]; the rest is
  // as Attention takes it. Rows that belong to no sequence have no meaning.
  void Attend(const LatentWeights& weights, AttentionArgs args);

  size_t bytes() const;

 private:
  View<const float, 2> QueryInput(const Input& input);

  const ModelConfig& config_;
  const Exec exec_;
  Buffer query_latents_;  // [max_tokens, query rank]
  Buffer latents_;        // [max_tokens, head_dim]
  Buffer queries_;        // [max_tokens, heads * head_dim], of latents
  Buffer sums_;           // [max_tokens, heads * rank]
};

}  // namespace penstock
