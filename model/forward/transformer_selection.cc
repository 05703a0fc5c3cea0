// Rows that attend to some of their pages, and what the pager of pages in a file is told.

#include <numeric>
#include <utility>
#include <vector>

#include "kernels/rope.h"
#include "kernels/wanted_pages.h"
#include "model/forward/transformer_batch.h"
#include "model/forward/transformer_runner.h"
#include "model/forward/transformer_scratch.h"

namespace penstock {

// Every row that selects is a sequence of its own in Batch::chosen.
void TransformerRunner::PrepareSelection(const StepArgs& args, Batch& batch) {
  StepSelection& selection = scratch_->selection;
  selection.Begin();
  std::vector<int64_t> leading;
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    leading.push_back(selection.Add(args.sequences[i], args.kv, batch.sequences[i].first_row));
  }
  if (!selection.any()) return;
  selection.FinishAdding(args.kv);
  size_t row = 0, kept = 0;
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const SequenceStep& sequence = args.sequences[i];
    AttentionSequence dense = batch.sequences[i];
    const int64_t rows = std::exchange(dense.rows, leading[i]);
    const auto first = std::ssize(batch.chosen);
    if (dense.rows > 0) batch.chosen.push_back(dense);
    for (int64_t j = leading[i]; j < rows; ++j) batch.chosen.push_back(selection.RowAt(row++));
    if (Batch::KeepsAll(sequence)) {
      batch.chosen_kept.insert(batch.chosen_kept.end(), batch.chosen.begin() + first,
                               batch.chosen.end());
      ++kept;
    } else if (sequence.wants_logits) {
      batch.chosen_kept.push_back(leading[i] < rows ? batch.chosen.back() : batch.kept[kept]);
      ++kept;
    }
  }
}

// The pages of a layer that are known before it has its queries.
void TransformerRunner::WantLayer(const StepArgs& args, int32_t layer, const Batch& batch) const {
  if (args.kv.pager == nullptr || layer >= weights_.config.layers) return;
  const bool selects = Selects(layer, batch);
  WantPages(args.kv, layer, weights_.config.WindowOf(layer),
            selects ? batch.chosen : batch.sequences, scratch_->reads);
  if (selects) scratch_->selection.WantMissing(args.kv, layer, scratch_->reads);
}

// Adds what was read from the file of the pages to the sequences' counts.
void TransformerRunner::ReportReads(const StepArgs& args) const {
  if (args.kv.pager == nullptr) return;
  size_t row = 0;
  for (const SequenceStep& sequence : args.sequences) {
    const std::span<const int64_t> reads(scratch_->reads);
    const auto of = reads.subspan(row, sequence.tokens.size());
    row += sequence.tokens.size();
    if (sequence.bytes_read == nullptr) continue;
    const int64_t layers = std::accumulate(of.begin(), of.end(), int64_t{0});
    *sequence.bytes_read += static_cast<uint64_t>(layers) * args.kv.layout.LayerBytes();
  }
}

bool TransformerRunner::Selects(int32_t layer, const Batch& batch) {
  return !batch.chosen.empty() && layer >= kDenseLayers;
}

// Chooses the pages of the rows that select, and returns what each row of the layer attends to.
std::span<const AttentionSequence> TransformerRunner::Attended(const StepArgs& args, int32_t layer,
                                                               const Batch& batch) {
  if (!Selects(layer, batch)) return batch.sequences;
  TransformerScratch& s = *scratch_;
  s.selection.Choose(args.kv, layer, weights_.config.heads,
                     {s.qkv.as<float>(), {batch.rows, s.qkv_width}});
  s.selection.WantChosen(args.kv, layer, batch.chosen, s.reads);
  return batch.chosen;
}

// Wants the pages that the rows will choose in a layer, as far as they can be guessed before the
// MLP of the layer before: the residual changes little from layer to layer, so its queries are near
// those that choose (InfiniGen: Lee et al., arXiv 2406.19707). The pages are read while the MLP is
// computed. Not where most rows are a prompt's, whose products would take longer than they hide.
void TransformerRunner::GuessPages(const StepArgs& args, int32_t layer, const Batch& batch) {
  const ModelConfig& config = weights_.config;
  TransformerScratch& s = *scratch_;
  if (args.kv.pager == nullptr || layer >= config.layers || !Selects(layer, batch) ||
      !s.selection.GuessPays(layer) || 2 * std::ssize(s.selection) < batch.rows) {
    return;
  }
  const View<float, 2> qkv = Project(layer, batch);
  const TransformerScratch::Angles angles = s.AnglesOf(config.RopeOf(layer), batch.rows);
  Rope(exec_, {.rows = qkv,
               .cosines = angles.cosines,
               .sines = angles.sines,
               .heads = config.heads,
               .head_dim = config.head_dim});
  s.selection.WantGuessed(args.kv, layer, config.heads, qkv, s.reads);
}

}  // namespace penstock
