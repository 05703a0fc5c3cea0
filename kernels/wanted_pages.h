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
// the caller can tell them a layer ahead.
void WantPages(const PagedKv& kv, int32_t layer, int32_t window,
               std::span<const AttentionSequence> sequences);

// The blocks that rows have selected, of all KV heads, ascending. The other sequences have none.
std::vector<uint32_t> SelectedBlocks(std::span<const AttentionSequence> sequences);

}  // namespace penstock
