#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kvstore/handoff_slabs.h"

namespace penstock {

// Packs pages into slabs. One thread at a time: it keeps room for the largest slab so far.
class SlabPacker {
 public:
  // `calibration` outlives it; null: no codec that needs one is asked for.
  explicit SlabPacker(PagedKv pages, const KvCalibration* calibration = nullptr)
      : pages_(pages), calibration_(calibration) {}

  // Gathers the pages into `buffer` (header.raw_bytes), encoded where that makes them smaller, and
  // says so in the header: codec, payload_bytes and payload_crc. `source.blocks[i]` is the page of
  // the slab's i-th block.
  struct Source {
    std::span<const uint32_t> blocks;
    uint32_t sequence_blocks = 0;  // of the whole sequence
  };
  void Pack(const KvCodecSpec& codec, const Source& source, std::span<std::byte> buffer,
            SlabHeader& header);

 private:
  void Fill(const KvCodecSpec& codec, const Source& source, std::span<std::byte> buffer,
            SlabHeader& header);

  const PagedKv pages_;
  const KvCalibration* const calibration_;
  std::vector<std::byte> raw_, encoded_;  // of the slab that is being packed
};

}  // namespace penstock
