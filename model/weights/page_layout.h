#pragma once

#include "kernels/paged_kv.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// The layout of a model's pages in bf16, with the default block_tokens. With a shard's config that
// of one GPU of several.
inline KvLayout PageLayoutOf(const ModelConfig& config) {
  return {.layers = config.KvLayers(),
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .window = config.WindowOfAllLayers(),
          .latent_rope_dim = config.latent.rope_dims,
          .group = WindowGroupOf(config.sliding_window)};
}

}  // namespace penstock
