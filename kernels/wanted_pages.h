#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention.h"
#include "kernels/paged_kv.h"

namespace penstock {

// Tells the pager of an arena in a file (kernels/kv_pager.h) which pages attention will read in a
// layer; nothing happens where the arena has none. The sooner it hears of them, the more of the
// reading is hidden behind computation.

// Of sequences that attend to all of their pages, or to those within `window` tokens if it is not
// 0: known before the step, and so to be told a layer ahead.
void WantPages(const PagedKv& kv, int32_t layer, int32_t window,
               std::span<const AttentionSequence> sequences);
// Of rows that select pages, which have been chosen for the layer.
void WantSelectedPages(const PagedKv& kv, int32_t layer,
                       std::span<const AttentionSequence> sequences);

}  // namespace penstock
