#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kvstore/handoff_slabs.h"

namespace penstock {

// Packs pages into slabs. One thread at a time: it keeps room for the largest slab so far.
class SlabPacker {
 public:
  explicit SlabPacker(PagedKv pages) : pages_(pages) {}

  // Gathers the pages into `buffer` (header.raw_bytes), encoded where that makes them smaller, and
  // says so in the header: codec, payload_bytes and payload_crc. `blocks[i]` is the page of the
  // slab's i-th block.
  void Pack(const KvCodecSpec& codec, std::span<const uint32_t> blocks, std::span<std::byte> buffer,
            SlabHeader& header);

 private:
  void Fill(const KvCodecSpec& codec, std::span<const uint32_t> blocks, std::span<std::byte> buffer,
            SlabHeader& header);

  const PagedKv pages_;
  std::vector<std::byte> raw_, encoded_;  // of the slab that is being packed
};

}  // namespace penstock
