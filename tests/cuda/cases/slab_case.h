#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock::cuda {

struct SlabCase {
  uint32_t piece_bytes = 4096;
  uint32_t blocks = 3;
  int64_t block_stride = 8192;
  int64_t offset = 1024;
  int processors = 2;
  bool sum = true;  // else it only moves
};

struct SlabResult {
  bool equal = false;     // the bytes are where they should be, and nothing else has changed
  uint32_t checksum = 0;  // of the slab
  std::vector<std::byte> slab;
};

// One GPU's heads of pages, and a slab of all heads.
struct SlabPartCase {
  uint32_t blocks = 3;
  uint32_t layers = 2;
  uint32_t codes_bytes = 2048;
  uint32_t scales_bytes = 0;
  uint32_t ranks = 2;  // in the slab, of equal bytes
  uint32_t rank = 1;
  int processors = 2;
  uint32_t beside_bytes = 0;  // between two layers, of layers of other sizes
  uint32_t behind_bytes = 0;  // behind the last layer of a block of the slab
};
// True if the bytes are where they should be, and nothing else has changed.
bool RunPart(const SlabPartCase& c, bool scatter);

SlabResult RunGather(const SlabCase& c);
SlabResult RunScatter(const SlabCase& c);

}  // namespace penstock::cuda
