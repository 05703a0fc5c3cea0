#include "model/forward/transformer_runner.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/eviction/kv_evictor.h"
#include "kernels/gemm.h"
#include "kernels/kv_rows.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/rows.h"
#include "model/forward/blended_rows.h"
#include "model/forward/transformer_batch.h"
#include "model/forward/transformer_scratch.h"
#include "model/weights/page_layout.h"

namespace penstock {
namespace {

View<const float, 1> Of(const std::vector<float>& values) {
  if (values.empty()) return {};
  return {values.data(), {static_cast<int64_t>(values.size())}};
}

int64_t QueryWidth(const ModelConfig& config) { return int64_t{config.heads} * config.head_dim; }

GemmOutput ActivationOf(const ModelConfig& config) {
  if (!config.names.HasGate()) {
    return config.activation == Activation::kGelu ? GemmOutput::kGelu : GemmOutput::kGeluTanh;
  }
  return config.activation == Activation::kGeluTanh ? GemmOutput::kGeluGate : GemmOutput::kSiluGate;
}

float AttentionScale(const ModelConfig& config) {
  if (config.attention_scale != 0) return config.attention_scale;
  return 1.0f / std::sqrt(static_cast<float>(config.head_dim));
}

}  // namespace

// A product that is added to the residual: the output of attention or of an MLP.
struct TransformerRunner::Branch {
  View<const float, 2> input;
  const WeightMatrix& weight;
  const std::vector<float>& bias;
  const std::vector<float>& norm;
};

TransformerRunner::TransformerRunner(const Weights& weights, const Exec& exec,
                                     int32_t max_step_tokens)
    : weights_(weights),
      exec_(exec),
      evictor_(std::make_unique<CpuEvictor>(exec)),
      scratch_(std::make_unique<TransformerScratch>(weights, exec, max_step_tokens)) {
  PENSTOCK_CHECK_GE(max_step_tokens, 1);
}

TransformerRunner::~TransformerRunner() = default;

int32_t TransformerRunner::vocab() const { return weights_.config.vocab; }
int32_t TransformerRunner::max_position() const { return weights_.config.max_position; }
int32_t TransformerRunner::max_step_tokens() const {
  return static_cast<int32_t>(scratch_->max_tokens);
}
int32_t TransformerRunner::hidden_size() const { return weights_.config.hidden; }
size_t TransformerRunner::scratch_bytes() const { return scratch_->bytes(); }

KvLayout TransformerRunner::kv_layout() const { return PageLayoutOf(weights_.config); }

// Not with sliding windows, which count positions: the slots of pages that were selected do not,
// nor do those behind an eviction. Not with latents, which have no keys of heads to score.
bool TransformerRunner::selects_pages() const {
  const auto& windows = weights_.config.sliding_window;
  return !weights_.config.HasLatents() &&
         std::all_of(windows.begin(), windows.end(), [](int32_t window) { return window == 0; });
}

// The same, and not with sinks either, which the scores of keys do not know.
std::optional<EvictionAttention> TransformerRunner::eviction_attention() const {
  const ModelConfig& config = weights_.config;
  if (!selects_pages() || config.attention_sinks) return std::nullopt;
  return EvictionAttention{.heads = config.heads,
                           .scale = AttentionScale(config),
                           .cap = config.attention_cap,
                           .evictor = evictor_.get()};
}

// Not without a rotation of keys that stands for positions, nor where every token of the step has
// an output of the last layer.
std::optional<KeyRotations> TransformerRunner::key_rotations() const {
  const ModelConfig& config = weights_.config;
  if (!CanBlend(config) || weights_.positions.bytes() != 0) return std::nullopt;
  KeyRotations rotations{.tables = {}, .layers = RotationsOfLayers(config), .exec = exec_};
  for (const RotationScratch& rotation : scratch_->rotations) {
    rotations.tables.push_back(rotation.table.frequencies());
  }
  return rotations;
}

absl::Status TransformerRunner::Step(const StepArgs& args) {
  RETURN_IF_ERROR(Check(args));
  Batch batch;
  Prepare(args, batch);
  const int32_t layers = weights_.config.layers;
  WantLayer(args, 0, batch);
  for (int32_t i = 0; i < layers; ++i) {
    WantLayer(args, i + 1, batch);
    const bool checks = i == kCheckedLayer && batch.blended > 0;
    if (checks) ReadReused(args, batch);
    AppendKv(args, i, batch);
    if (args.on_queries) {
      args.on_queries(i, {scratch_->qkv.as<float>(), {batch.rows, scratch_->qkv_width}});
    }
    TellDone(args, i + 1);
    if (checks) DropRows(args, batch);
    const bool last = i + 1 == layers;
    // In the last layer some rows need no more than keys and values.
    if (last) batch.KeepLast();
    if (last && batch.kept.empty()) break;
    Attend(args, i, batch);
    if (last) KeepRows(batch);
    RETURN_IF_ERROR(FinishLayer(args, i, batch));
  }
  if (!batch.kept.empty()) {
    scratch_->selection.End(args.kv);
    Finish(args, batch);
  }
  if (weights_.config.use_mtp) TellDone(args, layers + 1);
  ReportReads(args);
  return absl::OkStatus();
}

// The pages have the keys and values of the first `done` layers.
void TransformerRunner::TellDone(const StepArgs& args, int32_t done) const {
  if (!args.on_layers_done) return;
  const int32_t layers = weights_.config.KvLayers();
  const int32_t group = args.layers_per_group > 0 ? args.layers_per_group : layers;
  if (done % group != 0 && done != layers) return;
  const int32_t copies = args.kv.layout.Copies();
  args.on_layers_done(copies * ((done - 1) / group * group), copies * done);
}

View<const float, 2> TransformerRunner::Normed(const std::vector<float>& norm, const Batch& batch) {
  const int64_t hidden = weights_.config.hidden;
  const View<float, 2> residual(scratch_->residual.as<float>(), {batch.rows, hidden});
  if (norm.empty()) return residual;
  const View<float, 2> normed(scratch_->input.as<float>(), {batch.rows, hidden});
  const float epsilon = weights_.config.norm_epsilon;
  if (weights_.config.layer_norm) {
    LayerNorm(exec_, {.input = residual,
                      .weight = {norm.data(), {hidden}},
                      .bias = {norm.data() + hidden, {hidden}},
                      .output = normed,
                      .epsilon = epsilon});
  } else {
    RmsNorm(exec_, {.input = residual, .weight = Of(norm), .output = normed, .epsilon = epsilon});
  }
  return normed;
}

void TransformerRunner::AddProduct(const Branch& branch, const Batch& batch) {
  const ModelConfig& config = weights_.config;
  TransformerScratch& s = *scratch_;
  const View<float, 2> residual(s.residual.as<float>(), {batch.rows, config.hidden});
  if (branch.norm.empty() && config.residual_multiplier == 1) {
    return Gemm(exec_, {.input = branch.input,
                        .weight = &branch.weight,
                        .bias = Of(branch.bias),
                        .output = residual,
                        .mode = GemmOutput::kAdd,
                        .scratch = &s.gemm});
  }
  StoreProduct(branch, batch);
  AddBranch(branch.norm, batch);
}

// Stores the product in scratch_->branch.
void TransformerRunner::StoreProduct(const Branch& branch, const Batch& batch) {
  TransformerScratch& s = *scratch_;
  Gemm(exec_, {.input = branch.input,
               .weight = &branch.weight,
               .bias = Of(branch.bias),
               .output = {s.branch.as<float>(), {batch.rows, weights_.config.hidden}},
               .scratch = &s.gemm});
}

// Adds scratch_->branch to the residual.
void TransformerRunner::AddBranch(const std::vector<float>& norm, const Batch& batch) {
  const ModelConfig& config = weights_.config;
  const View<float, 2> residual(scratch_->residual.as<float>(), {batch.rows, config.hidden});
  const View<float, 2> branch(scratch_->branch.as<float>(), {batch.rows, config.hidden});
  if (!norm.empty()) {
    RmsNorm(
        exec_,
        {.input = branch, .weight = Of(norm), .output = branch, .epsilon = config.norm_epsilon});
  }
  AddRows(exec_, {.input = branch, .factor = config.residual_multiplier, .output = residual});
}

// The residual's queries, keys and values in a layer, not rotated yet.
View<float, 2> TransformerRunner::Project(int32_t layer, const Batch& batch) {
  const ModelConfig& config = weights_.config;
  const LayerWeights& w = weights_.layers[layer];
  TransformerScratch& s = *scratch_;
  const View<float, 2> qkv(s.qkv.as<float>(), {batch.rows, s.qkv_width});
  Gemm(exec_, {.input = Normed(w.attention_norm, batch),
               .weight = &w.qkv,
               .bias = Of(w.qkv_bias),
               .output = qkv,
               .scratch = &s.gemm});
  if (config.qk_norm != QkNorm::kNone) {
    // All heads together are normed as one wide head.
    const bool each = config.qk_norm == QkNorm::kHead;
    RmsNormHeads(exec_, {.rows = qkv,
                         .first_column = 0,
                         .heads = each ? config.heads : 1,
                         .weight = Of(w.q_norm),
                         .epsilon = config.norm_epsilon});
    RmsNormHeads(exec_, {.rows = qkv,
                         .first_column = QueryWidth(config),
                         .heads = each ? config.kv_heads : 1,
                         .weight = Of(w.k_norm),
                         .epsilon = config.norm_epsilon});
  }
  return qkv;
}

void TransformerRunner::AppendKv(const StepArgs& args, int32_t layer, const Batch& batch) {
  const ModelConfig& config = weights_.config;
  TransformerScratch& s = *scratch_;
  if (config.HasLatents()) return AppendLatents(args, layer, batch);
  const View<float, 2> qkv = Project(layer, batch);
  const TransformerScratch::Angles angles = s.AnglesOf(config.RopeOf(layer), batch.rows);
  RopeAppend(exec_, {.qkv = qkv,
                     .cosines = angles.cosines,
                     .sines = angles.sines,
                     .heads = config.heads,
                     .kv = args.kv,
                     .layer = args.kv.layout.Copies() * layer,
                     .slots = s.slots,
                     .key_means = CentreOf(args.kv, layer).means});
}

KeyCentre TransformerRunner::CentreOf(const PagedKv& kv, int32_t layer) const {
  const ModelConfig& config = weights_.config;
  const std::vector<float>& means = weights_.layers[layer].key_means;
  if (!kv.layout.centred || means.empty()) return {};
  return {.means = {means.data(), {config.kv_heads, config.head_dim}},
          .angles = &scratch_->position_angles.at(config.RopeOf(layer))};
}

void TransformerRunner::AppendLatents(const StepArgs& args, int32_t layer, const Batch& batch) {
  const LayerWeights& w = weights_.layers[layer];
  TransformerScratch& s = *scratch_;
  const TransformerScratch::Angles angles = s.AnglesOf(weights_.config.RopeOf(layer), batch.rows);
  s.latents.Append({.layer = w,
                    .rows = Normed(w.attention_norm, batch),
                    .cosines = angles.cosines,
                    .sines = angles.sines,
                    .queries = {s.qkv.as<float>(), {batch.rows, s.qkv_width}},
                    .kv = args.kv,
                    .index = layer,
                    .slots = s.slots,
                    .gemm = &s.gemm});
}

void TransformerRunner::Attend(const StepArgs& args, int32_t layer, const Batch& batch) {
  const ModelConfig& config = weights_.config;
  TransformerScratch& s = *scratch_;
  const std::span<const AttentionSequence> sequences = Attended(args, layer, batch);
  const View<float, 2> attended(s.input.as<float>(), {batch.rows, config.AttentionWidth()});
  const AttentionArgs attention{.queries = {s.qkv.as<float>(), {batch.rows, s.qkv_width}},
                                .output = attended,
                                .heads = config.heads,
                                .kv = args.kv,
                                .layer = args.kv.layout.Copies() * layer,
                                .window = config.WindowOf(layer),
                                .scale = AttentionScale(config),
                                .cap = config.attention_cap,
                                .sinks = config.attention_sinks
                                             ? std::span<const float>(weights_.layers[layer].sinks)
                                             : std::span<const float>(),
                                .sequences = sequences,
                                .centre = CentreOf(args.kv, layer),
                                .scratch = &s.attention};
  if (config.HasLatents()) return s.latents.Attend(*weights_.layers[layer].latents, attention);
  Attention(exec_, attention);
}

// Makes the rows of batch.kept the first, and only, rows.
void TransformerRunner::KeepRows(Batch& batch) {
  const int64_t hidden = weights_.config.hidden, attended = weights_.config.AttentionWidth();
  auto* residual = scratch_->residual.as<float>();
  auto* input = scratch_->input.as<float>();
  int64_t to = 0;
  for (const AttentionSequence& rows : batch.kept) {
    const int64_t from = rows.first_row;
    if (from != to) {
      std::copy_n(residual + from * hidden, rows.rows * hidden, residual + to * hidden);
      std::copy_n(input + from * attended, rows.rows * attended, input + to * attended);
    }
    to += rows.rows;
  }
  batch.rows = batch.kept_rows;
}

absl::Status TransformerRunner::FinishLayer(const StepArgs& args, int32_t index,
                                            const Batch& batch) {
  const ModelConfig& config = weights_.config;
  const LayerWeights& layer = weights_.layers[index];
  TransformerScratch& s = *scratch_;
  const Branch attention{.input = {s.input.as<float>(), {batch.rows, config.AttentionWidth()}},
                         .weight = layer.attention_output,
                         .bias = layer.attention_output_bias,
                         .norm = layer.attention_output_norm};
  // In parallel with the MLP, attention is added to the residual only when the MLP has read it.
  if (config.parallel_residual) {
    StoreProduct(attention, batch);
  } else {
    AddProduct(attention, batch);
  }
  GuessPages(args, index + 1, batch);
  if (layer.experts.has_value()) {
    RETURN_IF_ERROR(s.experts.Run(*layer.experts, Normed(layer.mlp_norm, batch), s.gemm,
                                  {s.branch.as<float>(), {batch.rows, config.hidden}}));
    AddBranch(layer.mlp_output_norm, batch);
    return absl::OkStatus();
  }
  const View<float, 2> gated(s.gated.as<float>(), {batch.rows, s.gated_width});
  Gemm(exec_, {.input = Normed(layer.mlp_norm, batch),
               .weight = &layer.gate_up,
               .bias = Of(layer.gate_up_bias),
               .output = gated,
               .mode = ActivationOf(config),
               .scratch = &s.gemm});
  if (config.parallel_residual) AddBranch(layer.attention_output_norm, batch);
  AddProduct({.input = gated,
              .weight = layer.down,
              .bias = layer.down_bias,
              .norm = layer.mlp_output_norm},
             batch);
  return absl::OkStatus();
}

// The outputs of the rows that are kept, behind the last layer.
void TransformerRunner::Finish(const StepArgs& args, Batch& batch) {
  const View<const float, 2> hidden = Normed(weights_.final_norm, batch);
  if (!batch.mtp.empty()) GatherMtp(hidden, batch);
  for (const Batch::Output& output : batch.outputs) {
    std::copy_n(hidden.row(output.row), output.hidden.size(), output.hidden.begin());
    for (int64_t row = output.row - output.rows + 1; row <= output.row; ++row) {
      for (size_t i = 0; i < output.sum.size(); ++i) output.sum[i] += hidden.row(row)[i];
    }
  }
  Logits(args, RowsWithLogits(hidden, batch));
  if (!batch.mtp.empty()) FillMtp(args, batch);
}

// The rows of `hidden` whose logits are wanted, as the first rows of the scratch of inputs, in
// which most models have `hidden`.
View<const float, 2> TransformerRunner::RowsWithLogits(View<const float, 2> hidden,
                                                       const Batch& batch) {
  const int64_t width = weights_.config.hidden;
  auto* const rows = scratch_->input.as<float>();
  int64_t count = 0;
  for (const Batch::Output& output : batch.outputs) {
    if (!output.logits) continue;
    const float* const from = hidden.row(output.row);
    float* const to = rows + count++ * width;
    if (from != to) std::copy_n(from, width, to);
  }
  return {rows, {count, width}};
}

void TransformerRunner::Logits(const StepArgs& args, View<const float, 2> hidden) {
  const ModelConfig& config = weights_.config;
  if (hidden.dim(0) == 0) return;
  Gemm(exec_, {.input = hidden,
               .weight = &weights_.lm_head,
               .output = args.logits,
               .scratch = &scratch_->gemm});
  if (config.logit_divisor == 1 && config.logit_cap == 0) return;
  CapRows(exec_,
          {.rows = args.logits, .factor = 1 / config.logit_divisor, .cap = config.logit_cap});
}

}  // namespace penstock
