#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvstore/cache/block_pool.h"

namespace penstock {

// The number of empty references before the others: the blocks that a sequence's window has passed.
size_t CountPassed(std::span<const BlockRef> blocks);

// The same of the blocks whose rows are not held, in a model with a window group; else 0.
size_t CountWithoutRows(std::span<const BlockRef> blocks, const KvLayout& layout);

// Takes the references to a sequence's first `first` blocks, which its window has passed, and
// leaves empty ones; returns those that were not empty. A kernel may load a few tokens before the
// window and give them the weight 0, so the entries of `table` (the blocks' ids) just before
// `first` then name block `first`, which stays. The sequence has more blocks than `first`.
std::vector<BlockRef> TakePassed(std::span<BlockRef> blocks, std::span<uint32_t> table,
                                 size_t first);

}  // namespace penstock
