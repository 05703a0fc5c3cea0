#include "model/cuda/cuda_layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/quantised_gemm.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/sample.h"
#include "model/cuda/experts/expert_pass.h"

namespace penstock {

float AttentionScale(const ModelConfig& config) {
  if (config.attention_scale != 0) return config.attention_scale;
  return 1.0f / std::sqrt(static_cast<float>(config.head_dim));
}

namespace {

constexpr float kLog2E = 1.44269504f;

// AttentionParams::scale_log2 and cap_factor.
float ScaleLog2(const ModelConfig& config) {
  return kLog2E * (config.attention_cap != 0 ? config.attention_cap : AttentionScale(config));
}
float CapFactor(const ModelConfig& config) {
  return config.attention_cap == 0 ? 0 : 2 * kLog2E * AttentionScale(config) / config.attention_cap;
}

}  // namespace

cuda::Product CudaLayers::Multiply(const CudaMatrix& matrix, int32_t rows) const {
  return Multiply(matrix, parts_.scratch.input.as<Bf16>(), rows);
}

cuda::Product CudaLayers::Multiply(const CudaMatrix& matrix, const Bf16* input,
                                   int32_t rows) const {
  cuda::Weight weight = matrix.weight;
  // Many rows use a quantised matrix often enough to expand it first. The output matrix is too
  // large for that memory; it multiplies few rows.
  if (weight.quantised() && rows > cuda::kSkinnyRowsMax &&
      cuda::ExpandedBytes(weight) <= parts_.scratch.expanded.bytes()) {
    auto* expanded = parts_.scratch.expanded.as<Bf16>();
    cuda::ExpandWeight(weight, expanded, parts_.stream);
    weight = {.data = expanded, .outputs = weight.outputs, .inputs = weight.inputs};
  }
  cuda::Product product = parts_.products.Multiply(
      weight, input, rows, parts_.scratch.product.as<float>(), parts_.stream);
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

cuda::NormParams CudaLayers::Norm(const CudaStep& step, const cuda::DeviceBuffer& norm) const {
  const ModelConfig& config = parts_.config;
  const auto* weight = norm.as<float>();  // null if the model has no such norm
  const bool biased = config.layer_norm && weight != nullptr;
  return {.residual = step.residual,
          .weight = weight,
          .output = parts_.scratch.input.as<Bf16>(),
          .hidden = config.hidden,
          .epsilon = config.norm_epsilon,
          .bias = biased ? weight + config.hidden : nullptr,
          .factor = config.residual_multiplier};
}

cuda::NormParams CudaLayers::NormAdding(CudaStep& step, const cuda::DeviceBuffer& norm) const {
  cuda::NormParams params = Norm(step, norm);
  params.product = std::exchange(step.to_add, {});
  params.product_norm = std::exchange(step.to_add_norm, nullptr);
  return params;
}

void CudaLayers::Embed(const CudaStep& step) const {
  const CudaWeights& w = parts_.weights;
  const bool tied = w.embedding.bytes() == 0;
  cuda::Embedding({.tokens = step.At<uint32_t>(step.rows->tokens),
                   .table = tied ? w.lm_head.weight.data : w.embedding.as<Bf16>(),
                   .output = step.residual,
                   .hidden = parts_.config.hidden,
                   .position_table = w.positions.as<Bf16>(),
                   .positions = step.At<int32_t>(step.rows->positions),
                   .multiplier = parts_.config.embedding_multiplier},
                  step.attention->rows, parts_.stream);
}

// Queries, keys and values. Norms over all heads are done; those of single heads are not.
cuda::Product CudaLayers::Qkv(const CudaLayer& layer, int32_t rows) const {
  const ModelConfig& config = parts_.config;
  cuda::Product product = Multiply(layer.qkv, rows);
  if (config.qk_norm != QkNorm::kWidth) return product;
  auto* sums = parts_.scratch.product.as<float>();
  cuda::WideHeadNorm({.product = product,
                      .output = sums,
                      .query_norm = layer.q_norm.as<float>(),
                      .key_norm = layer.k_norm.as<float>(),
                      .query_width = config.heads * config.head_dim,
                      .key_width = config.kv_heads * config.head_dim,
                      .epsilon = config.norm_epsilon},
                     rows, parts_.stream);
  return {.data = sums, .slices = 1, .width = product.width};
}

void CudaLayers::AppendKv(int32_t layer, CudaStep& step) const {
  const ModelConfig& config = parts_.config;
  const CudaLayer& w = parts_.weights.layers[layer];
  const int32_t rows = step.attention->rows;
  cuda::AddNorm(NormAdding(step, w.attention_norm), rows, parts_.stream);
  const StepAngles& angles = step.rows->angles[static_cast<size_t>(config.RopeOf(layer))];
  if (w.latents.has_value()) return AppendLatents(layer, angles, step);
  const bool each = config.qk_norm == QkNorm::kHead, spans = step.kv.layout.span > 0;
  const bool centred = step.centre_queries != nullptr;
  const int32_t stored = step.StoredLayer(layer);
  cuda::RopeAppend({.product = Qkv(w, rows),
                    .cosines = step.At<float>(angles.cosines),
                    .sines = step.At<float>(angles.sines),
                    .query_norm = each ? w.q_norm.as<float>() : nullptr,
                    .key_norm = each ? w.k_norm.as<float>() : nullptr,
                    .epsilon = config.norm_epsilon,
                    .queries = step.queries,
                    .heads = config.heads,
                    .rows = rows,
                    .rotary_dims = angles.dims,
                    .kv = cuda::PlanesOf(step.kv, stored),
                    .slots = step.SlotsOf(stored),
                    .recent = spans ? cuda::PlanesOf(step.kv, stored + 1) : cuda::KvPlanes(),
                    .recent_slots = spans ? step.SlotsOf(stored + 1) : nullptr,
                    .key_means = centred ? parts_.centre->MeansOf(layer) : nullptr,
                    .centre_queries = step.centre_queries},
                   parts_.stream);
}

LatentPass CudaLayers::Latents(const CudaLayer& layer, int32_t rows) const {
  return LatentPass({.config = parts_.config,
                     .layer = *layer.latents,
                     .scratch = parts_.scratch.latents,
                     .rows = rows,
                     .stream = parts_.stream});
}

// The latents come first: queries take the memory of the layer's input.
void CudaLayers::AppendLatents(int32_t layer, const StepAngles& at, const CudaStep& step) const {
  const CudaLayer& w = parts_.weights.layers[layer];
  const int32_t rows = step.attention->rows;
  const LatentPass pass = Latents(w, rows);
  const LatentPass::Angles angles{step.At<float>(at.cosines), step.At<float>(at.sines)};
  pass.StoreLatents(Multiply(w.latent_down, rows), angles, cuda::PlanesOf(step.kv, layer),
                    step.At<int64_t>(step.rows->slots));
  if (w.query_down.weight.outputs > 0) {
    pass.NormaliseQueries(Multiply(w.query_down, rows), parts_.scratch.input.as<Bf16>());
  }
  pass.RotateQueries(Multiply(w.qkv, rows), angles, step.queries);
}

// Residual and queries of some rows, into the memory of the last layer's.
void CudaLayers::GatherRows(const int32_t* from, size_t rows) const {
  CudaScratch& s = parts_.scratch;
  cuda::GatherRows({.input = s.residual.as<uint32_t>(),
                    .output = s.last_residual.as<uint32_t>(),
                    .from = from,
                    .width = parts_.config.hidden},
                   static_cast<int>(rows), parts_.stream);
  GatherQueries(s.queries.as<Bf16>(), from, rows, s.last_queries.as<Bf16>());
}

void CudaLayers::GatherQueries(const Bf16* all, const int32_t* from, size_t rows, Bf16* to) const {
  cuda::GatherRows({.input = reinterpret_cast<const uint32_t*>(all),
                    .output = reinterpret_cast<uint32_t*>(to),
                    .from = from,
                    .width = static_cast<int32_t>(QueryWidth(parts_.config) / 2)},
                   static_cast<int>(rows), parts_.stream);
}

// Gathered elsewhere first, because a row may go to the place of one that is still to be read.
void CudaLayers::KeepRows(const CudaStep& step) const {
  CudaScratch& s = parts_.scratch;
  const size_t rows = step.kept.size();
  GatherRows(step.At<int32_t>(step.kept_rows), rows);
  cuda::CopyOnDevice(s.residual.as<void>(), s.last_residual.as<void>(),
                     rows * static_cast<size_t>(parts_.config.hidden) * sizeof(float),
                     parts_.stream);
  cuda::CopyOnDevice(s.queries.as<void>(), s.last_queries.as<void>(),
                     rows * static_cast<size_t>(QueryWidth(parts_.config)) * sizeof(Bf16),
                     parts_.stream);
}

void CudaLayers::KeepLastRows(CudaStep& step) const {
  CudaScratch& s = parts_.scratch;
  const size_t rows = step.batch.last_rows.size();
  const auto* from = step.At<int32_t>(step.last_rows);
  GatherRows(from, rows);
  if (step.centre_queries != nullptr) {
    GatherQueries(step.centre_queries, from, rows, parts_.centre->last_queries());
    step.centre_queries = parts_.centre->last_queries();
  }
  step.attention = &step.batch.last;
  step.attention_at = &step.last_at;
  step.selected = &step.batch.last_selected;
  step.selected_at = &step.last_selected_at;
  step.residual = s.last_residual.as<float>();
  step.queries = s.last_queries.as<Bf16>();
}

cuda::AttentionParams CudaLayers::AttentionOf(int32_t layer, const CudaStep& step,
                                              const CudaAttention& rows,
                                              const AttentionInputs& at) const {
  const ModelConfig& config = parts_.config;
  const CudaScratch& s = parts_.scratch;
  const int64_t width = int64_t{config.heads} * config.head_dim;
  const int32_t stored = step.StoredLayer(layer), span = step.kv.layout.span;
  const bool centred = step.centre_queries != nullptr;
  const auto tables_of = [&](int32_t copy) {
    return step.At<uint32_t>(step.InRows(copy) ? at.row_tables : at.tables);
  };
  return {.queries = step.queries,
          .query_stride = width,
          .output = s.input.as<Bf16>(),
          .output_stride = width,
          .kv = cuda::PlanesOf(step.kv, stored),
          .tables = tables_of(stored),
          .table_stride = rows.table_stride,
          .sequences = step.At<cuda::AttentionSequence>(at.sequences),
          .positions = rows.positions.empty() ? nullptr : step.At<int32_t>(at.positions),
          .wide = step.At<cuda::AttentionTile>(at.wide),
          .narrow = step.At<cuda::AttentionTile>(at.narrow),
          .items = step.At<cuda::SplitItem>(at.items),
          .wide_scratch = s.wide_attention.as<float>(),
          .narrow_scratch = s.narrow_attention.as<float>(),
          .group = config.heads / config.kv_heads,
          .window = config.WindowOf(layer),
          .scale_log2 = ScaleLog2(config),
          .cap_factor = CapFactor(config),
          .sinks = parts_.weights.layers[layer].sinks.as<float>(),
          .span = span,
          .recent = span > 0 ? cuda::PlanesOf(step.kv, stored + 1) : cuda::KvPlanes(),
          .recent_tables = span > 0 ? tables_of(stored + 1) : nullptr,
          .centre_queries = step.centre_queries,
          .angles = centred ? parts_.centre->AnglesOf(config.RopeOf(layer)) : nullptr};
}

void CudaLayers::Attend(int32_t layer, const CudaStep& step) const {
  const CudaAttention& a = *step.attention;
  if (layer >= kDenseLayers && step.selected->any()) return AttendSelected(layer, step);
  if (a.prompts.plan.items > 0) AttendPrompts(layer, step);
  if (a.sequences.empty()) return;
  const CudaLayer& w = parts_.weights.layers[layer];
  const cuda::AttentionParams params = AttentionOf(layer, step, a, *step.attention_at);
  if (w.latents.has_value()) return Latents(w, a.rows).Attend(params, a.plan.counts());
  Launch(params, a.plan);
}

void CudaLayers::Launch(const cuda::AttentionParams& attention,
                        const cuda::AttentionPlan& plan) const {
  cuda::ForLaunches(plan, attention,
                    [this](const cuda::AttentionParams& params, cuda::AttentionCounts counts) {
                      cuda::Attention(params, counts, parts_.stream);
                    });
}

// Rows that choose pages first find the bounds that they lack.
void CudaLayers::AttendSelected(int32_t layer, const CudaStep& step) const {
  const ModelConfig& config = parts_.config;
  const CudaSelected& selected = *step.selected;
  const PageSelector& selector = *parts_.selector;
  const std::vector<uint32_t>& unbounded = step.batch.unbounded;
  selector.FindBounds(step.kv, layer, step.At<uint32_t>(step.unbounded),
                      static_cast<int32_t>(unbounded.size()), parts_.stream);
  const uint32_t* tables =
      selector.Choose(layer,
                      {.rows = step.At<cuda::SelectRow>(step.selected_at->rows),
                       .count = static_cast<int32_t>(selected.rows.size()),
                       .pages_max = selected.pages_max,
                       .keep_max = selected.keep_max,
                       .tables = step.At<uint32_t>(step.attention_at->tables),
                       .table_stride = step.attention->table_stride,
                       .queries = step.queries},
                      parts_.stream);
  if (!selected.dense.sequences.empty()) {
    Launch(AttentionOf(layer, step, selected.dense, step.selected_at->dense), selected.dense.plan);
  }
  cuda::AttentionParams chosen =
      AttentionOf(layer, step, selected.chosen, step.selected_at->chosen);
  chosen.tables = tables;
  chosen.table_stride = int64_t{config.kv_heads} * selected.keep_max;
  chosen.head_table_stride = selected.keep_max;
  Launch(chosen, selected.chosen.plan);
}

// By the library's kernel, each row into its place among the step's rows.
void CudaLayers::AttendPrompts(int32_t layer, const CudaStep& step) const {
  const ModelConfig& config = parts_.config;
  const PromptRows& prompts = step.attention->prompts;
  const AttentionInputs& at = *step.attention_at;
  const int64_t width = int64_t{config.heads} * config.head_dim;
  cuda::library::PrefillShape shape = parts_.prompts;
  shape.window = config.WindowOf(layer);
  shape.table_stride = step.attention->table_stride;
  cuda::library::LaunchPrefill(
      {.queries = step.queries,
       .query_stride = width,
       .output = parts_.scratch.input.as<Bf16>(),
       .output_stride = width,
       .rows = step.attention->rows,
       .kv = cuda::PlanesOf(step.kv, layer),
       .tables = step.At<uint32_t>(step.InRows(layer) ? at.prompt_row_tables : at.prompt_tables),
       .shape = shape,
       .plan = step.At<int32_t>(at.prompt_plan),
       .items = prompts.plan.items,
       .scale = AttentionScale(config)},
      parts_.stream);
}

// Into scratch.input.
void CudaLayers::Activate(const cuda::Product& product, int32_t rows) const {
  const ModelConfig& config = parts_.config;
  const auto output = parts_.scratch.input.as<Bf16>();
  const bool gate = config.names.HasGate();
  if (gate && config.activation == Activation::kSilu) {
    return cuda::SiluGate({.product = product, .output = output}, rows, parts_.stream);
  }
  using enum cuda::GeluKind;
  const bool exact = config.activation == Activation::kGelu;
  cuda::Gelu({.product = product,
              .output = output,
              .kind = gate    ? kTanhGate
                      : exact ? kExact
                              : kTanh},
             rows, parts_.stream);
}

cuda::Product CudaLayers::Mlp(const CudaLayer& layer, int32_t rows) const {
  Activate(Multiply(layer.gate_up, rows), rows);
  return MultiplyShared(layer.down, rows);
}

// The expert that all tokens use is the layer's MLP. Of several GPUs each adds up its part of all
// experts first.
cuda::Product CudaLayers::Experts(const CudaLayer& layer, int32_t rows) const {
  CudaScratch& s = parts_.scratch;
  const ExpertPass pass({.config = parts_.config.experts,
                         .layer = *layer.experts,
                         .scratch = s.experts,
                         .product = s.product.as<float>(),
                         .rows = rows,
                         .stream = parts_.stream});
  pass.AddRouted(s.input.as<Bf16>());
  if (layer.experts->shared) {
    Activate(Multiply(layer.gate_up, rows), rows);
    pass.AddShared(Multiply(layer.down, rows));
  }
  if (parts_.exchange == nullptr) return pass.sums();
  return parts_.exchange->Sum(pass.sums(), rows, parts_.stream);
}

void CudaLayers::Finish(int32_t layer, CudaStep& step) const {
  const CudaLayer& w = parts_.weights.layers[layer];
  const int32_t rows = step.attention->rows;
  cuda::NormParams norm = Norm(step, w.mlp_norm);
  norm.product = MultiplyShared(w.attention_output, rows);
  norm.product_norm = w.attention_output_norm.as<float>();
  norm.norms_first = parts_.config.parallel_residual;
  cuda::AddNorm(norm, rows, parts_.stream);
  step.to_add = w.experts.has_value() ? Experts(w, rows) : Mlp(w, rows);
  step.to_add_norm = w.mlp_output_norm.as<float>();
}

// The rows with logits or draws, of scratch.input. Hidden states are read from there, so these rows
// go to the memory of the residual, which has ended.
const Bf16* CudaLayers::GatherOutputs(const CudaStep& step) const {
  CudaScratch& s = parts_.scratch;
  if (step.batch.all_output) return s.input.as<Bf16>();
  cuda::GatherRows({.input = s.input.as<uint32_t>(),
                    .output = s.residual.as<uint32_t>(),
                    .from = step.At<int32_t>(step.output_rows),
                    .width = parts_.config.hidden / 2},
                   step.batch.outputs, parts_.stream);
  return s.residual.as<Bf16>();
}

void CudaLayers::NormOutputs(const cuda::DeviceBuffer& norm, CudaStep& step) const {
  cuda::AddNorm(NormAdding(step, norm), step.attention->rows, parts_.stream);
}

void CudaLayers::Logits(const CudaStep& step) const {
  const ModelConfig& config = parts_.config;
  const int32_t rows = step.batch.logits_count();
  if (rows == 0) return;
  const cuda::Product product = Multiply(parts_.weights.lm_head, GatherOutputs(step), rows);
  auto* logits = parts_.scratch.product.as<float>();
  if (product.slices > 1 || config.logit_divisor != 1 || config.logit_cap != 0) {
    cuda::SumSlices({.product = product,
                     .output = logits,
                     .factor = 1 / config.logit_divisor,
                     .cap = config.logit_cap},
                    rows, parts_.stream);
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

// The hidden states take the memory of the last rows' residual, which has ended or not begun, and
// the norms that of the product of them.
void CudaLayers::ProjectMtp(const CudaStep& step) const {
  const CudaWeights& w = parts_.weights;
  CudaScratch& s = parts_.scratch;
  const int32_t rows = step.attention->rows, hidden = parts_.config.hidden;
  const MtpPass pass({.weights = w.mtp,
                      .hidden = hidden,
                      .epsilon = parts_.config.norm_epsilon,
                      .rows = rows,
                      .states = s.last_residual.as<float>(),
                      .stream = parts_.stream});
  const MtpRows& mtp = step.batch.mtp;
  if (!mtp.states().empty()) {
    pass.GatherStates(s.input.as<Bf16>(), step.At<uint32_t>(step.mtp_states));
  }
  const auto* before = step.At<float>(step.mtp_before);
  for (const RowRange& given : mtp.given()) {
    pass.PutStates(before, given.first, given.count);
    before += given.count * hidden;
  }
  pass.Join(step.residual, step.At<int32_t>(step.mtp_order), s.product.as<Bf16>(),
            s.input.as<Bf16>());
  cuda::SumSlices({.product = Multiply(w.mtp_projection, rows), .output = step.residual}, rows,
                  parts_.stream);
}

}  // namespace penstock
