#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kvstore/handoff/slab_memory.h"

namespace penstock {

// Packs pages into slabs in host memory. Keeps scratch memory for the largest slab so far. One
// thread at a time.
class SlabPacker {
 public:
  // `calibration` outlives it; null: codecs that need one are never requested.
  explicit SlabPacker(PagedKv pages, const KvCalibration* calibration = nullptr)
      : pages_(pages), calibration_(calibration) {}

  // As SlabMemory::Pack, for one slab.
  void Pack(const KvCodecSpec& codec, const SlabSource& source, std::span<std::byte> buffer,
            SlabHeader& header);

 private:
  void Fill(const KvCodecSpec& codec, const SlabSource& source, std::span<std::byte> buffer,
            SlabHeader& header);

  const PagedKv pages_;
  const KvCalibration* const calibration_;
  std::vector<std::byte> raw_, encoded_;  // scratch for the slab being packed
};

}  // namespace penstock
