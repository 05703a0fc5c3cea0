#include "model/cuda/cuda_layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/quantised_gemm.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/sample.h"

namespace penstock {
namespace {

float ScaleLog2(const ModelConfig& config) {
  return 1.44269504f / std::sqrt(static_cast<float>(config.head_dim));
}

}  // namespace

cuda::Product CudaLayers::Multiply(const CudaMatrix& matrix, int32_t rows) const {
  cuda::Weight weight = matrix.weight;
  // Many rows use a quantised matrix often enough to expand it first. The output matrix is too
  // large for that memory; it multiplies few rows.
  if (weight.quantised() && rows > cuda::kSkinnyRowsMax &&
      cuda::ExpandedBytes(weight) <= parts_.scratch.expanded.bytes()) {
    auto* expanded = parts_.scratch.expanded.as<Bf16>();
    cuda::ExpandWeight(weight, expanded, parts_.stream);
    weight = {.data = expanded, .outputs = weight.outputs, .inputs = weight.inputs};
  }
  cuda::Product product =
      parts_.products.Multiply(weight, parts_.scratch.input.as<Bf16>(), rows,
                               parts_.scratch.product.as<float>(), parts_.stream);
  product.bias = matrix.bias;
  return product;
}

// Multiplies a matrix whose inputs are divided among the worker's GPUs.
cuda::Product CudaLayers::MultiplyShared(const CudaMatrix& matrix, int32_t rows) const {
  cuda::Product product = Multiply(matrix, rows);
  if (parts_.exchange == nullptr) return product;
  product.bias = nullptr;
  product = parts_.exchange->Sum(product, rows, parts_.stream);
  product.bias = matrix.bias;
  return product;
}

void CudaLayers::Embed(const CudaStep& step) const {
  const CudaWeights& w = parts_.weights;
  const bool tied = w.embedding.bytes() == 0;
  cuda::Embedding({.tokens = step.At<uint32_t>(step.tokens),
                   .table = tied ? w.lm_head.weight.data : w.embedding.as<Bf16>(),
                   .output = step.residual,
                   .hidden = parts_.config.hidden},
                  step.attention->rows, parts_.stream);
}

void CudaLayers::AppendKv(int32_t layer, CudaStep& step) const {
  const ModelConfig& config = parts_.config;
  const CudaLayer& w = parts_.weights.layers[layer];
  const int32_t rows = step.attention->rows;
  cuda::AddRmsNorm({.residual = step.residual,
                    .product = std::exchange(step.to_add, {}),
                    .weight = w.attention_norm.as<float>(),
                    .output = parts_.scratch.input.as<Bf16>(),
                    .hidden = config.hidden,
                    .epsilon = config.norm_epsilon},
                   rows, parts_.stream);
  cuda::RopeAppend({.product = Multiply(w.qkv, rows),
                    .cosines = step.At<float>(step.cosines),
                    .sines = step.At<float>(step.sines),
                    .query_norm = w.q_norm.as<float>(),
                    .key_norm = w.k_norm.as<float>(),
                    .epsilon = config.norm_epsilon,
                    .queries = step.queries,
                    .heads = config.heads,
                    .rows = rows,
                    .kv = cuda::PlanesOf(step.kv, layer),
                    .slots = step.At<int64_t>(step.slots)},
                   parts_.stream);
}

void CudaLayers::KeepLastRows(CudaStep& step) const {
  CudaScratch& s = parts_.scratch;
  const auto rows = static_cast<int>(step.batch.last_rows.size());
  const auto* from = step.At<int32_t>(step.last_rows);
  cuda::GatherRows({.input = s.residual.as<uint32_t>(),
                    .output = s.last_residual.as<uint32_t>(),
                    .from = from,
                    .width = parts_.config.hidden},
                   rows, parts_.stream);
  cuda::GatherRows({.input = s.queries.as<uint32_t>(),
                    .output = s.last_queries.as<uint32_t>(),
                    .from = from,
                    .width = parts_.config.heads * parts_.config.head_dim / 2},
                   rows, parts_.stream);
  step.attention = &step.batch.last;
  step.attention_at = &step.last_at;
  step.residual = s.last_residual.as<float>();
  step.queries = s.last_queries.as<Bf16>();
}

void CudaLayers::Attend(int32_t layer, const CudaStep& step) const {
  const ModelConfig& config = parts_.config;
  const CudaScratch& s = parts_.scratch;
  const CudaAttention& a = *step.attention;
  const AttentionInputs& at = *step.attention_at;
  const int64_t width = int64_t{config.heads} * config.head_dim;
  cuda::Attention({.queries = step.queries,
                   .query_stride = width,
                   .output = s.input.as<Bf16>(),
                   .output_stride = width,
                   .kv = cuda::PlanesOf(step.kv, layer),
                   .tables = step.At<uint32_t>(at.tables),
                   .table_stride = a.table_stride,
                   .sequences = step.At<cuda::AttentionSequence>(at.sequences),
                   .wide = step.At<cuda::AttentionTile>(at.wide),
                   .narrow = step.At<cuda::AttentionTile>(at.narrow),
                   .items = step.At<cuda::SplitItem>(at.items),
                   .wide_scratch = s.wide_attention.as<float>(),
                   .narrow_scratch = s.narrow_attention.as<float>(),
                   .group = config.heads / config.kv_heads,
                   .window = config.sliding_window.empty() ? 0 : config.sliding_window[layer],
                   .scale_log2 = ScaleLog2(config)},
                  a.plan.counts(), parts_.stream);
}

void CudaLayers::Finish(int32_t layer, CudaStep& step) const {
  const ModelConfig& config = parts_.config;
  const CudaLayer& w = parts_.weights.layers[layer];
  const auto input = parts_.scratch.input.as<Bf16>();
  const int32_t rows = step.attention->rows;
  cuda::AddRmsNorm({.residual = step.residual,
                    .product = MultiplyShared(w.attention_output, rows),
                    .weight = w.mlp_norm.as<float>(),
                    .output = input,
                    .hidden = config.hidden,
                    .epsilon = config.norm_epsilon},
                   rows, parts_.stream);
  cuda::SiluGate({.product = Multiply(w.gate_up, rows), .output = input}, rows, parts_.stream);
  step.to_add = MultiplyShared(w.down, rows);
}

void CudaLayers::Logits(const CudaStep& step) const {
  const int32_t rows = step.attention->rows;
  cuda::AddRmsNorm({.residual = step.residual,
                    .product = step.to_add,
                    .weight = parts_.weights.final_norm.as<float>(),
                    .output = parts_.scratch.input.as<Bf16>(),
                    .hidden = parts_.config.hidden,
                    .epsilon = parts_.config.norm_epsilon},
                   rows, parts_.stream);
  const cuda::Product product = Multiply(parts_.weights.lm_head, rows);
  auto* logits = parts_.scratch.product.as<float>();
  if (product.slices > 1) {
    cuda::SumSlices({.product = product, .output = logits}, rows, parts_.stream);
  }
  if (!step.batch.draws.empty()) {
    cuda::Sample({.logits = logits,
                  .vocabulary = product.width,
                  .draws = step.At<cuda::SampleRow>(step.draws),
                  .sampled = parts_.scratch.sampled.as<cuda::SampledRow>(),
                  .scratch = parts_.scratch.draws.as<void>()},
                 static_cast<int>(step.batch.draws.size()), parts_.stream);
  }
}

}  // namespace penstock
