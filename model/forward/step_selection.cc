#include "model/forward/step_selection.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_pager.h"
#include "kernels/wanted_pages.h"

namespace penstock {

void StepSelection::Begin() {
  selecting_.Clear();
  rows_.clear();
}

int64_t StepSelection::Add(const SequenceStep& sequence, const PagedKv& kv, int64_t first_row) {
  return selecting_.Add(sequence, kv, first_row, bounds_.known());
}

void StepSelection::FinishAdding(const PagedKv& kv) {
  selecting_.FinishAdding();
  for (const SelectingRows::Row& row : selecting_.rows()) {
    rows_.push_back({.row = row.row, .blocks = row.blocks, .keep = row.keep, .tables = {}});
  }
  guesses_.BeginStep(std::ssize(rows_), std::chrono::steady_clock::now());
  for (const SelectingRows::Missing& missing : selecting_.missing()) {
    bounds_.Reserve(kv, missing.block);
  }
  size_t size = 0;
  const auto of = [&](const SelectingRow& row) {
    return static_cast<size_t>(kv.layout.kv_heads * row.keep);
  };
  for (const SelectingRow& row : rows_) size += of(row);
  tables_.resize(size);
  size_t first = 0;
  for (SelectingRow& row : rows_) {
    row.tables = std::span(tables_).subspan(first, of(row));
    first += of(row);
  }
}

AttentionSequence StepSelection::RowAt(size_t index) const {
  const SelectingRow& row = rows_[index];
  return {.first_row = row.row,
          .rows = 1,
          .position = selecting_.rows()[index].slot,
          .blocks = row.tables,
          .head_blocks = row.keep};
}

void StepSelection::WantMissing(const PagedKv& kv, int32_t layer, std::span<int64_t> reads) const {
  if (kv.pager == nullptr) return;
  using Missing = SelectingRows::Missing;
  const std::vector<Missing>& missing = selecting_.missing();
  std::vector<uint32_t> blocks;
  for (const Missing& needed : missing) blocks.push_back(needed.block);
  const auto before = [](const Missing& needed, uint32_t block) { return needed.block < block; };
  for (const uint32_t block : kv.pager->OnWanted(blocks, layer)) {
    const auto read = std::lower_bound(missing.begin(), missing.end(), block, before);
    ++reads[static_cast<size_t>(read->row)];
  }
}

void StepSelection::Choose(const PagedKv& kv, int32_t layer, int32_t heads,
                           View<const float, 2> queries) {
  const int32_t kv_heads = kv.layout.kv_heads;
  const std::vector<SelectingRows::Missing>& missing = selecting_.missing();
  ParallelFor(exec_, std::ssize(missing) * kv_heads, [&](int64_t task, int) {
    const uint32_t block = missing[static_cast<size_t>(task / kv_heads)].block;
    bounds_.Compute(kv, block, layer, static_cast<int32_t>(task % kv_heads));
  });
  SelectFor(rows_, kv, layer, heads, queries);
}

void StepSelection::SelectFor(std::span<const SelectingRow> rows, const PagedKv& kv, int32_t layer,
                              int32_t heads, View<const float, 2> queries) {
  SelectPages(exec_, {.queries = queries,
                      .heads = heads,
                      .layout = kv.layout,
                      .layer = layer,
                      .bounds = &bounds_,
                      .rows = rows});
}

void StepSelection::WantChosen(const PagedKv& kv, int32_t layer,
                               std::span<const AttentionSequence> sequences,
                               std::span<int64_t> reads) {
  if (kv.pager == nullptr) return;
  const std::vector<uint32_t> blocks = SelectedBlocks(sequences);
  std::vector<uint32_t> missing = kv.pager->OnWanted(blocks, layer);
  guesses_.OnChosen(layer, std::ssize(blocks), std::ssize(missing));
  CountReads(std::move(missing), sequences, reads);
}

void StepSelection::WantGuessed(const PagedKv& kv, int32_t layer, int32_t heads,
                                View<const float, 2> queries, std::span<int64_t> reads) {
  std::vector<SelectingRow> rows;
  std::vector<AttentionSequence> sequences;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (!selecting_.rows()[i].bounded) continue;
    rows.push_back(rows_[i]);
    sequences.push_back(RowAt(i));
  }
  SelectFor(rows, kv, layer, heads, queries);
  std::vector<uint32_t> missing = kv.pager->OnGuessed(SelectedBlocks(sequences), layer);
  guesses_.OnGuessed(layer, std::ssize(missing));
  CountReads(std::move(missing), sequences, reads);
}

void StepSelection::End(const PagedKv& kv) {
  if (any()) guesses_.EndStep(std::chrono::steady_clock::now());
  selecting_.RememberIn(bounds_.known(), kv);
}

uint64_t StepSelection::BytesWanted(const KvLayout& layout, int64_t tokens,
                                    const PageSelection& selection) {
  const int64_t blocks = layout.BlocksAtOnce(tokens, 1);
  const int64_t chosen = int64_t{selection.pages} * layout.kv_heads;
  int64_t fewer = layout.group.size();  // layers that do not read all blocks
  int64_t read = layout.RowsAtOnce(tokens, 1);
  if (selection.Selects(tokens - 1, layout.block_tokens) && chosen < blocks) {
    fewer = std::max(0, layout.layers - kDenseLayers);
    read = chosen;
  }
  return static_cast<uint64_t>((layout.layers - fewer) * blocks + fewer * read) *
         layout.LayerBytes();
}

}  // namespace penstock
