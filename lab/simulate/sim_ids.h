#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "kvstore/names/block_hash.h"

namespace penstock {

// The simulator numbers blocks; the index wants ids.
inline BlockId SimBlockId(uint32_t block) {
  BlockId id;
  const uint64_t number = block + uint64_t{1};
  std::memcpy(id.bytes.data(), &number, sizeof(number));
  return id;
}

inline std::vector<BlockId> SimBlockIds(std::span<const uint32_t> blocks) {
  std::vector<BlockId> ids;
  ids.reserve(blocks.size());
  for (const uint32_t block : blocks) ids.push_back(SimBlockId(block));
  return ids;
}

}  // namespace penstock
