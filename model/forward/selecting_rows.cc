#include "model/forward/selecting_rows.h"

#include <algorithm>

#include "kernels/selection/select_pages.h"

namespace penstock {

static_assert(kSelectedPagesMin > kFirstPages + kLastPages);

void SelectingRows::Clear() {
  rows_.clear();
  missing_.clear();
}

int64_t SelectingRows::Add(const SequenceStep& sequence, const PagedKv& kv, int64_t first_row,
                           const KnownBounds& known) {
  const PageSelection& selection = sequence.selection;
  const int32_t page = kv.layout.block_tokens;
  const auto rows = static_cast<int64_t>(sequence.tokens.size());
  const int64_t leading = selection.Leading(sequence.position, rows, page);
  if (leading == rows) return leading;
  const auto pages = static_cast<size_t>(kv.layout.BlocksFor(sequence.position + rows));
  const size_t missing = missing_.size();
  for (size_t i = 0; i + kLastPages < pages; ++i) {
    const uint32_t block = sequence.blocks[i];
    if (known.Has(kv, block)) continue;
    const int64_t end = static_cast<int64_t>(i + 1) * page;
    missing_.push_back(
        {.block = block, .stays = end <= selection.checked, .row = first_row + leading});
  }
  for (int64_t i = leading; i < rows; ++i) {
    const int64_t position = sequence.position + i;
    const auto held = static_cast<size_t>(kv.layout.BlocksFor(position + 1));
    rows_.push_back({.row = first_row + i,
                     .blocks = sequence.blocks.first(held),
                     .keep = selection.pages,
                     .slot = selection.Attended(position, page) - 1,
                     .bounded = missing_.size() == missing});
  }
  return leading;
}

// Sequences may share blocks: each is computed once, and stays if it does for one of them.
void SelectingRows::FinishAdding() {
  std::sort(missing_.begin(), missing_.end(), [](const Missing& a, const Missing& b) {
    return a.block != b.block ? a.block < b.block : a.stays > b.stays;
  });
  const auto same = [](const Missing& a, const Missing& b) { return a.block == b.block; };
  missing_.erase(std::unique(missing_.begin(), missing_.end(), same), missing_.end());
}

void SelectingRows::RememberIn(KnownBounds& known, const PagedKv& kv) const {
  for (const Missing& missing : missing_) {
    if (missing.stays) known.Remember(kv, missing.block);
  }
}

}  // namespace penstock
