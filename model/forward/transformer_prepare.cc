// What comes before the first layer: the step is checked, and its sequences become rows.

#include "kernels/embedding.h"
#include "kernels/rows.h"
#include "model/forward/step_check.h"
#include "model/forward/transformer_batch.h"
#include "model/forward/transformer_runner.h"
#include "model/forward/transformer_scratch.h"

namespace penstock {

absl::Status TransformerRunner::CheckPageFormat(const KvLayout& layout) const {
  if (layout.span > 0 && !selects_pages()) {
    return InvalidArgument(
        "kv.layout has a span of {} tokens, which models with sliding windows or latents do not "
        "take",
        layout.span);
  }
  if (layout.centred && weights_.layers[0].key_means.empty()) {
    return InvalidArgument("kv.layout has centred keys, and the weights have no means of keys");
  }
  return absl::OkStatus();
}

absl::Status TransformerRunner::Check(const StepArgs& args) const {
  const KvLayout& layout = args.kv.layout;
  RETURN_IF_ERROR(CheckPageFormat(layout));
  const bool by_position = layout.span > 0;  // which evicted and selected slots do not have
  RETURN_IF_ERROR(CheckStep(args, {.layout = kv_layout(),
                                   .vocab = vocab(),
                                   .max_position = max_position(),
                                   .max_tokens = scratch_->max_tokens,
                                   .hidden_size = hidden_size(),
                                   .takes_evicted = !by_position && eviction_attention(),
                                   .has_mtp = weights_.config.use_mtp,
                                   .blends = !by_position && key_rotations(),
                                   .selects_pages = !by_position && selects_pages()}));
  if (layout.HasLatents() && layout.dtype != KvDtype::kBf16) {
    return InvalidArgument("kv.layout is {}, pages of latents are always bf16",
                           KvDtypeName(layout.dtype));
  }
  if (HoldsHeads(layout.dtype, layout.head_dim)) return absl::OkStatus();
  return InvalidArgument(
      "kv.layout is {}, this model's heads have {} dimensions: quantised pages hold multiples of "
      "16 up to {}, use bf16",
      KvDtypeName(layout.dtype), layout.head_dim, kQuantisedHeadMax);
}

void TransformerRunner::Prepare(const StepArgs& args, Batch& batch) {
  TransformerScratch& s = *scratch_;
  s.tokens.clear();
  s.slots.clear();
  s.positions.clear();
  const SequenceStep* previous = nullptr;
  for (const SequenceStep& sequence : args.sequences) {
    AddTokens(args, sequence, batch.rows);
    AddSequence(sequence, batch);
    if (sequence.fills_mtp) {
      batch.mtp.back().follows =
          previous != nullptr && previous->fills_mtp &&
          previous->blocks.data() == sequence.blocks.data() &&
          previous->position + std::ssize(previous->tokens) == sequence.position;
    }
    previous = &sequence;
  }
  s.reads.assign(static_cast<size_t>(batch.rows), 0);
  PrepareSelection(args, batch);
  Embed(batch);
}

// Tokens, slots and angles of the sequence's rows.
void TransformerRunner::AddTokens(const StepArgs& args, const SequenceStep& sequence,
                                  int64_t first_row) {
  TransformerScratch& s = *scratch_;
  const int32_t page = args.kv.layout.block_tokens;
  for (int64_t i = 0; i < std::ssize(sequence.tokens); ++i) {
    const auto position = static_cast<int32_t>(sequence.position + i);
    const int32_t slot = position - sequence.evicted;
    s.slots.push_back({sequence.blocks[slot / page], slot % page});
    s.positions.push_back(static_cast<uint32_t>(position));
    for (RotationScratch& rotation : s.rotations) rotation.SetRow(first_row + i, position);
  }
  s.tokens.insert(s.tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
}

void TransformerRunner::AddSequence(const SequenceStep& sequence, Batch& batch) {
  const AttentionSequence all{.first_row = batch.rows,
                              .rows = std::ssize(sequence.tokens),
                              .position = sequence.position - sequence.evicted,
                              .blocks = sequence.blocks};
  if (sequence.blended != nullptr && batch.blended++ == 0) batch.first_blended = batch.rows;
  batch.sequences.push_back(all);
  batch.rows += all.rows;
  const int64_t kept_row = batch.kept_rows;
  if (sequence.fills_mtp) {
    batch.mtp.push_back({.first_row = all.first_row,
                         .kept_row = kept_row,
                         .rows = all.rows,
                         .before = sequence.before});
  }
  if (Batch::KeepsAll(sequence)) {
    batch.kept.push_back(all);
  } else if (sequence.wants_logits) {
    batch.kept.push_back({.first_row = batch.rows - 1,
                          .rows = 1,
                          .position = all.position + all.rows - 1,
                          .blocks = all.blocks});
  } else {
    return;
  }
  batch.kept_rows += batch.kept.back().rows;
  batch.outputs.push_back({.row = batch.kept_rows - 1,
                           .logits = sequence.wants_logits,
                           .hidden = sequence.hidden,
                           .rows = batch.kept.back().rows,
                           .sum = sequence.hidden_sum});
}

void TransformerRunner::Embed(const Batch& batch) {
  const View<float, 2> residual(scratch_->residual.as<float>(),
                                {batch.rows, weights_.config.hidden});
  EmbeddingArgs embedding{
      .tokens = scratch_->tokens, .matrix = weights_.embedding_matrix(), .output = residual};
  if (embedding.matrix == nullptr) {
    embedding.table = {weights_.embedding.as<const Bf16>(), {vocab(), weights_.config.hidden}};
  }
  Embedding(exec_, embedding);
  if (weights_.positions.bytes() != 0) AddPositions(batch);
  if (weights_.config.embedding_multiplier != 1) {
    CapRows(exec_, {.rows = residual, .factor = weights_.config.embedding_multiplier});
  }
}

// Adds the learned embeddings of the rows' positions.
void TransformerRunner::AddPositions(const Batch& batch) {
  const ModelConfig& config = weights_.config;
  TransformerScratch& s = *scratch_;
  const View<float, 2> learned(s.input.as<float>(), {batch.rows, config.hidden});
  Embedding(exec_,
            {.tokens = s.positions,
             .table = {weights_.positions.as<const Bf16>(), {config.max_position, config.hidden}},
             .output = learned});
  AddRows(exec_,
          {.input = learned, .output = {s.residual.as<float>(), {batch.rows, config.hidden}}});
}

}  // namespace penstock
