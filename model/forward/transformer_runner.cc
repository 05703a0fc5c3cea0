#include "model/forward/transformer_runner.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/embedding.h"
#include "kernels/gemm.h"
#include "kernels/kv_rows.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "model/forward/rope_angles.h"
#include "model/forward/step_check.h"

namespace penstock {
namespace {

View<const float, 1> Of(const std::vector<float>& values) {
  if (values.empty()) return {};
  return {values.data(), {static_cast<int64_t>(values.size())}};
}

int64_t QueryWidth(const ModelConfig& config) { return int64_t{config.heads} * config.head_dim; }

}  // namespace

// The rows of a step, each [max_step_tokens, width].
struct TransformerRunner::Scratch {
  Scratch(const Weights& weights, int threads, int32_t max_step_tokens)
      : max_tokens(max_step_tokens),
        frequencies(RopeFrequencies(weights.config.rope, weights.config.head_dim)),
        qkv_width(weights.layers[0].qkv.outputs()),
        gated_width(weights.layers[0].down.inputs()),
        input_width(std::max<int64_t>(weights.config.hidden, QueryWidth(weights.config))),
        residual(Floats(weights.config.hidden)),
        input(Floats(input_width)),
        qkv(Floats(qkv_width)),
        gated(Floats(gated_width)),
        cosines(Floats(weights.config.head_dim / 2)),
        sines(Floats(weights.config.head_dim / 2)),
        gemm(max_tokens, std::max(input_width, gated_width), threads),
        attention(weights.config.head_dim, threads) {
    tokens.reserve(static_cast<size_t>(max_tokens));
    slots.reserve(static_cast<size_t>(max_tokens));
  }

  Buffer Floats(int64_t width) const {
    return Buffer(static_cast<size_t>(max_tokens * width) * sizeof(float));
  }
  size_t bytes() const {
    return residual.bytes() + input.bytes() + qkv.bytes() + gated.bytes() + cosines.bytes() +
           sines.bytes() + gemm.bytes() + attention.bytes();
  }

  const int64_t max_tokens;
  const std::vector<float> frequencies;
  const int64_t qkv_width;
  const int64_t gated_width;
  const int64_t input_width;
  Buffer residual;  // [hidden]
  Buffer input;  // input of a product: normed rows [hidden], or attention output [heads * head_dim]
  Buffer qkv;
  Buffer gated;
  Buffer cosines;
  Buffer sines;
  GemmScratch gemm;
  AttentionScratch attention;
  std::vector<uint32_t> tokens;
  std::vector<KvSlot> slots;
};

// The rows of a step's sequences, in order.
struct TransformerRunner::Batch {
  int64_t rows = 0;
  std::vector<AttentionSequence> sequences;
  std::vector<AttentionSequence> last;  // the last row of each sequence with wants_logits
};

TransformerRunner::TransformerRunner(const Weights& weights, const Exec& exec,
                                     int32_t max_step_tokens)
    : weights_(weights),
      exec_(exec),
      scratch_(std::make_unique<Scratch>(weights, ThreadCount(exec), max_step_tokens)) {
  PENSTOCK_CHECK_GE(max_step_tokens, 1);
}

TransformerRunner::~TransformerRunner() = default;

int32_t TransformerRunner::vocab() const { return weights_.config.vocab; }
int32_t TransformerRunner::max_position() const { return weights_.config.max_position; }
int32_t TransformerRunner::max_step_tokens() const {
  return static_cast<int32_t>(scratch_->max_tokens);
}
size_t TransformerRunner::scratch_bytes() const { return scratch_->bytes(); }

KvLayout TransformerRunner::kv_layout() const {
  return {.layers = weights_.config.layers,
          .kv_heads = weights_.config.kv_heads,
          .head_dim = weights_.config.head_dim};
}

absl::Status TransformerRunner::Step(const StepArgs& args) {
  RETURN_IF_ERROR(Check(args));
  Batch batch;
  Prepare(args, batch);
  const int32_t layers = weights_.config.layers;
  const int32_t group = args.layers_per_group > 0 ? args.layers_per_group : layers;
  for (int32_t i = 0; i < layers; ++i) {
    AppendKv(args, i, batch);
    const int32_t done = i + 1;
    if (args.on_layers_done && (done % group == 0 || done == layers)) {
      args.on_layers_done((done - 1) / group * group, done);
    }
    if (done == layers) {
      // In the last layer only rows with logits need more than keys and values.
      if (batch.last.empty()) return absl::OkStatus();
      batch.sequences = batch.last;
    }
    Attend(args, i, batch);
    if (done == layers) KeepLastRows(batch);
    FinishLayer(i, batch);
  }
  Logits(args, batch);
  return absl::OkStatus();
}

absl::Status TransformerRunner::Check(const StepArgs& args) const {
  RETURN_IF_ERROR(CheckStep(args, {.layout = kv_layout(),
                                   .vocab = vocab(),
                                   .max_position = max_position(),
                                   .max_tokens = scratch_->max_tokens}));
  const KvLayout& layout = args.kv.layout;
  if (HoldsHeads(layout.dtype, layout.head_dim)) return absl::OkStatus();
  return InvalidArgument(
      "kv.layout is {}, this model's heads have {} dimensions: quantised pages hold multiples of "
      "16 up to {}, use bf16",
      KvDtypeName(layout.dtype), layout.head_dim, kQuantisedHeadMax);
}

void TransformerRunner::Prepare(const StepArgs& args, Batch& batch) {
  Scratch& s = *scratch_;
  s.tokens.clear();
  s.slots.clear();
  const int32_t page = args.kv.layout.block_tokens, half = weights_.config.head_dim / 2;
  for (const SequenceStep& sequence : args.sequences) {
    const auto rows = static_cast<int64_t>(sequence.tokens.size());
    batch.sequences.push_back({.first_row = batch.rows,
                               .rows = rows,
                               .position = sequence.position,
                               .blocks = sequence.blocks});
    if (sequence.wants_logits) {
      batch.last.push_back({.first_row = batch.rows + rows - 1,
                            .rows = 1,
                            .position = sequence.position + rows - 1,
                            .blocks = sequence.blocks});
    }
    for (int64_t i = 0; i < rows; ++i) {
      const auto position = static_cast<int32_t>(sequence.position + i);
      s.slots.push_back({sequence.blocks[position / page], position % page});
      RopeAngles(s.frequencies, weights_.config.rope.attention_factor, position,
                 s.cosines.as<float>() + (batch.rows + i) * half,
                 s.sines.as<float>() + (batch.rows + i) * half);
    }
    s.tokens.insert(s.tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    batch.rows += rows;
  }
  EmbeddingArgs embedding{.tokens = s.tokens,
                          .matrix = weights_.embedding_matrix(),
                          .output = {s.residual.as<float>(), {batch.rows, weights_.config.hidden}}};
  if (embedding.matrix == nullptr) {
    embedding.table = {weights_.embedding.as<const Bf16>(), {vocab(), weights_.config.hidden}};
  }
  Embedding(exec_, embedding);
}

void TransformerRunner::AppendKv(const StepArgs& args, int32_t layer, const Batch& batch) {
  const ModelConfig& config = weights_.config;
  const LayerWeights& w = weights_.layers[layer];
  Scratch& s = *scratch_;
  const View<float, 2> residual(s.residual.as<float>(), {batch.rows, config.hidden});
  const View<float, 2> normed(s.input.as<float>(), {batch.rows, config.hidden});
  const View<float, 2> qkv(s.qkv.as<float>(), {batch.rows, s.qkv_width});
  RmsNorm(exec_, {.input = residual,
                  .weight = Of(w.attention_norm),
                  .output = normed,
                  .epsilon = config.norm_epsilon});
  Gemm(exec_, {.input = normed,
               .weight = &w.qkv,
               .bias = Of(w.qkv_bias),
               .output = qkv,
               .scratch = &s.gemm});
  if (config.qk_norm) {
    RmsNormHeads(exec_, {.rows = qkv,
                         .first_column = 0,
                         .heads = config.heads,
                         .weight = Of(w.q_norm),
                         .epsilon = config.norm_epsilon});
    RmsNormHeads(exec_, {.rows = qkv,
                         .first_column = QueryWidth(config),
                         .heads = config.kv_heads,
                         .weight = Of(w.k_norm),
                         .epsilon = config.norm_epsilon});
  }
  const int64_t half = config.head_dim / 2;
  RopeAppend(exec_, {.qkv = qkv,
                     .cosines = {s.cosines.as<float>(), {batch.rows, half}},
                     .sines = {s.sines.as<float>(), {batch.rows, half}},
                     .heads = config.heads,
                     .kv = args.kv,
                     .layer = layer,
                     .slots = s.slots});
}

void TransformerRunner::Attend(const StepArgs& args, int32_t layer, const Batch& batch) {
  const ModelConfig& config = weights_.config;
  Scratch& s = *scratch_;
  const View<float, 2> attended(s.input.as<float>(), {batch.rows, QueryWidth(config)});
  Attention(exec_, {.queries = {s.qkv.as<float>(), {batch.rows, s.qkv_width}},
                    .output = attended,
                    .heads = config.heads,
                    .kv = args.kv,
                    .layer = layer,
                    .window = config.sliding_window.empty() ? 0 : config.sliding_window[layer],
                    .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
                    .sequences = batch.sequences,
                    .scratch = &s.attention});
}

// Makes the rows of batch.last the first, and only, rows.
void TransformerRunner::KeepLastRows(Batch& batch) {
  const int64_t hidden = weights_.config.hidden, attended = QueryWidth(weights_.config);
  auto* residual = scratch_->residual.as<float>();
  auto* input = scratch_->input.as<float>();
  for (size_t i = 0; i < batch.last.size(); ++i) {
    const int64_t from = batch.last[i].first_row, to = static_cast<int64_t>(i);
    if (from == to) continue;
    std::copy_n(residual + from * hidden, hidden, residual + to * hidden);
    std::copy_n(input + from * attended, attended, input + to * attended);
  }
  batch.rows = static_cast<int64_t>(batch.last.size());
}

void TransformerRunner::FinishLayer(int32_t index, const Batch& batch) {
  const ModelConfig& config = weights_.config;
  const LayerWeights& layer = weights_.layers[index];
  Scratch& s = *scratch_;
  const View<float, 2> residual(s.residual.as<float>(), {batch.rows, config.hidden});
  const View<float, 2> normed(s.input.as<float>(), {batch.rows, config.hidden});
  const View<float, 2> gated(s.gated.as<float>(), {batch.rows, s.gated_width});
  Gemm(exec_, {.input = {s.input.as<float>(), {batch.rows, QueryWidth(config)}},
               .weight = &layer.attention_output,
               .bias = Of(layer.attention_output_bias),
               .output = residual,
               .mode = GemmOutput::kAdd,
               .scratch = &s.gemm});
  RmsNorm(exec_, {.input = residual,
                  .weight = Of(layer.mlp_norm),
                  .output = normed,
                  .epsilon = config.norm_epsilon});
  Gemm(exec_, {.input = normed,
               .weight = &layer.gate_up,
               .bias = Of(layer.gate_up_bias),
               .output = gated,
               .mode = GemmOutput::kSiluGate,
               .scratch = &s.gemm});
  Gemm(exec_, {.input = gated,
               .weight = &layer.down,
               .bias = Of(layer.down_bias),
               .output = residual,
               .mode = GemmOutput::kAdd,
               .scratch = &s.gemm});
}

void TransformerRunner::Logits(const StepArgs& args, const Batch& batch) {
  const ModelConfig& config = weights_.config;
  Scratch& s = *scratch_;
  const View<float, 2> normed(s.input.as<float>(), {batch.rows, config.hidden});
  RmsNorm(exec_, {.input = {s.residual.as<float>(), {batch.rows, config.hidden}},
                  .weight = Of(weights_.final_norm),
                  .output = normed,
                  .epsilon = config.norm_epsilon});
  Gemm(exec_,
       {.input = normed, .weight = &weights_.lm_head, .output = args.logits, .scratch = &s.gemm});
}

}  // namespace penstock
