#include "model/forward/step_selection.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_pager.h"
#include "kernels/wanted_pages.h"

namespace penstock {

static_assert(kSelectedPagesMin > kFirstPages + kLastPages);

void StepSelection::Begin() {
  rows_.clear();
  bounded_.clear();
  slots_.clear();
  missing_.clear();
}

int64_t StepSelection::Add(const SequenceStep& sequence, const PagedKv& kv, int64_t first_row) {
  const PageSelection& selection = sequence.selection;
  const int32_t page = kv.layout.block_tokens;
  const auto rows = static_cast<int64_t>(sequence.tokens.size());
  int64_t leading = 0;
  while (leading < rows && !selection.Selects(sequence.position + leading, page)) ++leading;
  for (int64_t i = leading; i < rows; ++i) {
    const int64_t position = sequence.position + i;
    const auto pages = static_cast<size_t>(kv.layout.BlocksFor(position + 1));
    rows_.push_back({.row = first_row + i,
                     .blocks = sequence.blocks.first(pages),
                     .keep = selection.pages,
                     .tables = {}});
    slots_.push_back(selection.Attended(position, page) - 1);
  }
  if (leading == rows) return leading;
  const size_t missing = missing_.size();
  const size_t scored = rows_.back().blocks.size() - kLastPages;
  for (size_t i = 0; i < scored; ++i) {
    const uint32_t block = sequence.blocks[i];
    if (bounds_.Has(kv, block)) continue;
    const int64_t end = static_cast<int64_t>(i + 1) * page;
    missing_.push_back(
        {.block = block, .stays = end <= selection.checked, .row = first_row + leading});
  }
  bounded_.resize(rows_.size(), missing_.size() == missing);
  return leading;
}

void StepSelection::FinishAdding(const PagedKv& kv) {
  guesses_.BeginStep(std::ssize(rows_), std::chrono::steady_clock::now());
  // Sequences may share blocks: each is computed once, and stays if it does for one of them.
  std::sort(missing_.begin(), missing_.end(), [](const Missing& a, const Missing& b) {
    return a.block != b.block ? a.block < b.block : a.stays > b.stays;
  });
  const auto same = [](const Missing& a, const Missing& b) { return a.block == b.block; };
  missing_.erase(std::unique(missing_.begin(), missing_.end(), same), missing_.end());
  for (const Missing& missing : missing_) bounds_.Reserve(kv, missing.block);
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
          .position = slots_[index],
          .blocks = row.tables,
          .head_blocks = row.keep};
}

void StepSelection::WantMissing(const PagedKv& kv, int32_t layer, std::span<int64_t> reads) const {
  if (kv.pager == nullptr) return;
  std::vector<uint32_t> blocks;
  for (const Missing& missing : missing_) blocks.push_back(missing.block);
  const auto before = [](const Missing& missing, uint32_t block) { return missing.block < block; };
  for (const uint32_t block : kv.pager->OnWanted(blocks, layer)) {
    const auto read = std::lower_bound(missing_.begin(), missing_.end(), block, before);
    ++reads[static_cast<size_t>(read->row)];
  }
}

void StepSelection::Choose(const PagedKv& kv, int32_t layer, int32_t heads,
                           View<const float, 2> queries) {
  const int32_t kv_heads = kv.layout.kv_heads;
  ParallelFor(exec_, std::ssize(missing_) * kv_heads, [&](int64_t task, int) {
    const Missing& missing = missing_[static_cast<size_t>(task / kv_heads)];
    bounds_.Compute(kv, missing.block, layer, static_cast<int32_t>(task % kv_heads));
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
    if (!bounded_[i]) continue;
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
  for (const Missing& missing : missing_) {
    if (missing.stays) bounds_.Complete(kv, missing.block);
  }
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
