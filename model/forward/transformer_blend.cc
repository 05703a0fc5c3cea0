// Rows of blended parts: those that deviate most are computed further (CacheBlend).

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/blend/deviation.h"
#include "model/forward/blended_rows.h"
#include "model/forward/transformer_batch.h"
#include "model/forward/transformer_runner.h"
#include "model/forward/transformer_scratch.h"

namespace penstock {

void TransformerRunner::ReadReused(const StepArgs& args, Batch& batch) {
  const std::span<const KvSlot> slots = scratch_->slots;
  batch.reused =
      ReadValues(args.kv, kCheckedLayer, slots.subspan(static_cast<size_t>(batch.first_blended)),
                 batch.reused_values);
}

// The rows of a blended part that are computed in the layers behind, counted from its first.
std::vector<uint32_t> TransformerRunner::ChooseRows(const AttentionSequence& part,
                                                    const Batch& batch, BlendedTokens& blended) {
  const ModelConfig& config = weights_.config;
  const TransformerScratch& s = *scratch_;
  const int64_t values = int64_t{config.heads + config.kv_heads} * config.head_dim;
  const float* qkv = s.qkv.as<float>() + part.first_row * s.qkv_width;
  const int64_t first = part.first_row - batch.first_blended;
  const ValueDeviation deviation =
      DeviationOf({batch.reused.row(first), {part.rows, batch.reused.dim(1)}},
                  {qkv, {part.rows, s.qkv_width}}, values);
  return ChooseBlended(deviation.tokens, deviation.relative, blended);
}

// Leaves out the blended rows that deviate least: their KV stays as the pages have it.
void TransformerRunner::DropRows(const StepArgs& args, Batch& batch) {
  const size_t others = batch.sequences.size() - batch.blended;
  const std::vector<AttentionSequence> parts(
      batch.sequences.begin() + static_cast<std::ptrdiff_t>(others), batch.sequences.end());
  batch.sequences.resize(others);
  batch.rows = batch.first_blended;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t first = batch.sequences.size();
    for (const uint32_t row : ChooseRows(parts[i], batch, *args.sequences[others + i].blended)) {
      MoveRow(parts[i].first_row + row, batch.rows);
      const int64_t position = parts[i].position + row;
      AttentionSequence* run = batch.sequences.size() > first ? &batch.sequences.back() : nullptr;
      if (run != nullptr && run->position + run->rows == position) {
        ++run->rows;
      } else {
        batch.sequences.push_back(
            {.first_row = batch.rows, .rows = 1, .position = position, .blocks = parts[i].blocks});
      }
      ++batch.rows;
    }
  }
  scratch_->slots.resize(static_cast<size_t>(batch.rows));
  if (batch.chosen.empty()) return;
  batch.chosen.resize(batch.chosen.size() - parts.size());
  batch.chosen.insert(batch.chosen.end(),
                      batch.sequences.begin() + static_cast<std::ptrdiff_t>(others),
                      batch.sequences.end());
}

// Everything that later layers need of a row.
void TransformerRunner::MoveRow(int64_t from, int64_t to) {
  if (from == to) return;
  TransformerScratch& s = *scratch_;
  const auto move = [&](float* rows, int64_t width) {
    std::copy_n(rows + from * width, width, rows + to * width);
  };
  move(s.residual.as<float>(), weights_.config.hidden);
  move(s.qkv.as<float>(), s.qkv_width);
  s.slots[static_cast<size_t>(to)] = s.slots[static_cast<size_t>(from)];
  for (RotationScratch& rotation : s.rotations) {
    move(rotation.cosines.as<float>(), rotation.pairs());
    move(rotation.sines.as<float>(), rotation.pairs());
  }
}

}  // namespace penstock
