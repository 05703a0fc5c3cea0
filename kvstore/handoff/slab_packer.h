#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kvstore/handoff/slab_memory.h"

namespace penstock {

// Packs pages into slabs in the host's memory. One thread at a time: it keeps room for the largest
// slab so far.
class SlabPacker {
 public:
  // `calibration` outlives it; null: no codec that needs one is asked for.
  explicit SlabPacker(PagedKv pages, const KvCalibration* calibration = nullptr)
      : pages_(pages), calibration_(calibration) {}

  // As SlabMemory::Pack.
  void Pack(const KvCodecSpec& codec, const SlabSource& source, std::span<std::byte> buffer,
            SlabHeader& header);

 private:
  void Fill(const KvCodecSpec& codec, const SlabSource& source, std::span<std::byte> buffer,
            SlabHeader& header);

  const PagedKv pages_;
  const KvCalibration* const calibration_;
  std::vector<std::byte> raw_, encoded_;  // of the slab that is being packed
};

}  // namespace penstock
