#include "model/cuda/latents/latent_pass.h"

#include "kernels/cuda/latents/latents.h"

namespace penstock {
namespace {

// As on CPUs: DeepSeek's code does not take it from config.json.
constexpr float kLatentNormEpsilon = 1e-6f;

}  // namespace

void LatentPass::StoreLatents(const cuda::Product& latents, const Angles& angles,
                              const cuda::KvPlanes& kv, const int64_t* slots) const {
  cuda::LatentAppend({.product = latents,
                      .norm = parts_.layer.norm.as<float>(),
                      .epsilon = kLatentNormEpsilon,
                      .cosines = angles.cosines,
                      .sines = angles.sines,
                      .rows = parts_.rows,
                      .kv = kv,
                      .slots = slots},
                     parts_.stream);
}

void LatentPass::NormaliseQueries(const cuda::Product& product, Bf16* output) const {
  cuda::LatentNorm({.product = product,
                    .weight = parts_.layer.query_norm.as<float>(),
                    .epsilon = kLatentNormEpsilon,
                    .output = output},
                   parts_.rows, parts_.stream);
}

void LatentPass::RotateQueries(const cuda::Product& product, const Angles& angles,
                               Bf16* queries) const {
  cuda::LatentQueries({.product = product,
                       .cosines = angles.cosines,
                       .sines = angles.sines,
                       .rows = parts_.rows,
                       .heads = parts_.config.heads,
                       .plain_dims = parts_.config.latent.plain_dims,
                       .queries = queries},
                      parts_.stream);
}

void LatentPass::MultiplyHeads(const DeviceHeads& heads, const Bf16* input, int32_t input_step,
                               Bf16* output) const {
  cuda::HeadProducts({.matrices = heads.memory.as<Bf16>(),
                      .heads = parts_.config.heads,
                      .outputs = heads.outputs,
                      .inputs = heads.inputs,
                      .input = input,
                      .input_step = input_step,
                      .rows = parts_.rows,
                      .output = output},
                     parts_.stream);
}

void LatentPass::Attend(cuda::AttentionParams attention,
                        const cuda::AttentionCounts& counts) const {
  const auto& [config, layer, scratch, rows, stream] = parts_;
  const Bf16* const queries = attention.queries;
  const int32_t query_dims = config.latent.QueryDims(), rank = config.latent.rank;
  Bf16* const output = attention.output;
  MultiplyHeads(layer.queries, queries, query_dims, scratch.queries.as<Bf16>());
  attention.queries = scratch.queries.as<Bf16>();
  attention.output = scratch.sums.as<Bf16>();
  attention.query_stride = attention.output_stride = int64_t{config.heads} * rank;
  cuda::LatentAttention({.attention = attention,
                         .rotated = queries + config.latent.plain_dims,
                         .rotated_stride = int64_t{config.heads} * query_dims,
                         .rotated_step = query_dims},
                        counts, stream);
  MultiplyHeads(layer.values, scratch.sums.as<Bf16>(), rank, output);
}

}  // namespace penstock
