#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/paged_kv.h"

namespace penstock {

// The pages that attention reads in a layer, for the pager of an arena in a file
// (kernels/kv_pager.h). The sooner it hears of them, the more of the reading is hidden behind
// computation.

// Tells the pager, if the arena has one, of the pages of sequences that attend to all of them, or
// only to those within `window` tokens if it is not 0. These pages are known before the step, so
// the caller can tell them a layer ahead. Adds the number of those that were not in memory to
// `reads`, which has an element for each row of the step, at the sequence's first row.
void WantPages(const PagedKv& kv, int32_t layer, int32_t window,
               std::span<const AttentionSequence> sequences, std::span<int64_t> reads);

// The blocks that rows have selected, of all KV heads, ascending. The other sequences have none.
std::vector<uint32_t> SelectedBlocks(std::span<const AttentionSequence> sequences);

// Counts each of `missing`, which were not in memory, in `reads` at the first row that has selected
// it.
void CountReads(std::vector<uint32_t> missing, std::span<const AttentionSequence> sequences,
                std::span<int64_t> reads);

}  // namespace penstock
