#include "model/forward/latent_attention.h"

#include <algorithm>

#include "kernels/cpu/thread_pool.h"
#include "kernels/latents.h"
#include "kernels/norm.h"

namespace penstock {
namespace {

// That of the norms of latents, in every model: DeepSeek's code does not take it from config.json.
constexpr float kLatentNormEpsilon = 1e-6f;

Buffer FloatRows(int64_t rows, int64_t width) {
  return Buffer(static_cast<size_t>(rows * width) * sizeof(float));
}

}  // namespace

LatentAttention::LatentAttention(const ModelConfig& config, const Exec& exec, int64_t max_tokens)
    : config_(config), exec_(exec) {
  if (!config.HasLatents()) return;
  query_latents_ = FloatRows(max_tokens, config.latent.query_rank);
  latents_ = FloatRows(max_tokens, config.head_dim);
  queries_ = FloatRows(max_tokens, int64_t{config.heads} * config.head_dim);
  sums_ = FloatRows(max_tokens, int64_t{config.heads} * config.latent.rank);
}

size_t LatentAttention::bytes() const {
  return query_latents_.bytes() + latents_.bytes() + queries_.bytes() + sums_.bytes();
}

// The rows that queries are products of.
View<const float, 2> LatentAttention::QueryInput(const Input& input) {
  const LatentWeights& weights = *input.layer.latents;
  if (weights.query_norm.empty()) return input.rows;
  const int64_t rank = config_.latent.query_rank;
  const View<float, 2> latents(query_latents_.as<float>(), {input.rows.dim(0), rank});
  Gemm(exec_, {.input = input.rows,
               .weight = &weights.query_down,
               .output = latents,
               .scratch = input.gemm});
  RmsNorm(exec_, {.input = latents,
                  .weight = {weights.query_norm.data(), {rank}},
                  .output = latents,
                  .epsilon = kLatentNormEpsilon});
  return latents;
}

void LatentAttention::Append(const Input& input) {
  const LatentWeights& weights = *input.layer.latents;
  Gemm(exec_, {.input = QueryInput(input),
               .weight = &input.layer.qkv,
               .output = input.queries,
               .scratch = input.gemm});
  const View<float, 2> latents(latents_.as<float>(), {input.rows.dim(0), config_.head_dim});
  Gemm(exec_,
       {.input = input.rows, .weight = &weights.down, .output = latents, .scratch = input.gemm});
  RmsNormHeads(exec_, {.rows = latents,
                       .heads = 1,
                       .weight = {weights.norm.data(), {config_.latent.rank}},
                       .epsilon = kLatentNormEpsilon});
  LatentAppend(exec_, {.queries = input.queries,
                       .latents = latents,
                       .cosines = input.cosines,
                       .sines = input.sines,
                       .heads = config_.heads,
                       .kv = input.kv,
                       .layer = input.index,
                       .slots = input.slots});
}

void LatentAttention::Attend(const LatentWeights& weights, AttentionArgs args) {
  const LatentConfig& latent = config_.latent;
  const View<const float, 2> plain = args.queries;
  const View<float, 2> values = args.output;
  const int64_t rows = plain.dim(0);
  const View<float, 2> queries(queries_.as<float>(),
                               {rows, int64_t{config_.heads} * config_.head_dim});
  HeadProducts(exec_, {.input = plain,
                       .input_step = latent.QueryDims(),
                       .weights = weights.queries,
                       .output = queries,
                       .output_step = config_.head_dim});
  ParallelFor(exec_, rows, [&](int64_t row, int) {
    for (int32_t head = 0; head < config_.heads; ++head) {
      std::copy_n(plain.row(row) + head * latent.QueryDims() + latent.plain_dims, latent.rope_dims,
                  queries.row(row) + head * config_.head_dim + latent.rank);
    }
  });
  const View<float, 2> sums(sums_.as<float>(), {rows, int64_t{config_.heads} * latent.rank});
  args.queries = queries;
  args.output = sums;
  Attention(exec_, args);
  HeadProducts(exec_, {.input = sums,
                       .input_step = latent.rank,
                       .weights = weights.values,
                       .output = values,
                       .output_step = latent.value_dims});
}

}  // namespace penstock
