#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention.h"
#include "kernels/paged_kv.h"

namespace penstock {

// Tells the pager of an arena in a file (kernels/kv_pager.h) which pages attention will read in a
// layer; nothing happens where the arena has none. The sooner it hears of them, the more of the
// reading is hidden behind computation.

// For sequences that attend to all of their pages, or only to those within `window` tokens if it is
// not 0. These pages are known before the step, so the caller can tell them a layer ahead.
void WantPages(const PagedKv& kv, int32_t layer, int32_t window,
               std::span<const AttentionSequence> sequences);
// For rows that select pages. Their pages of the layer have been chosen already.
void WantSelectedPages(const PagedKv& kv, int32_t layer,
                       std::span<const AttentionSequence> sequences);

}  // namespace penstock
