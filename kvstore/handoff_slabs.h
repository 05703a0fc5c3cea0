#pragma once

#include <cstddef>
#include <span>

#include "kernels/paged_kv.h"
#include "kvstore/slab.h"

namespace penstock {

// The bytes of a slab's payload: for each block in [first_block, first_block + blocks) those of
// layers [first_layer, first_layer + layers). `pages[i]` is the page of the slab's i-th block;
// `payload` has header.raw_bytes. Any thread that may touch the pages.
void GatherSlab(const PagedKv& kv, const SlabHeader& header, std::span<const uint32_t> pages,
                std::span<std::byte> payload);
void ScatterSlab(const PagedKv& kv, const SlabHeader& header, std::span<const uint32_t> pages,
                 std::span<const std::byte> payload);

}  // namespace penstock
