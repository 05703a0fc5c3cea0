#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "kvstore/names/block_hash.h"
#include "router/index/block_directory.h"

namespace penstock {

// The tier that a worker can serve a block from, fastest first. kExpected: no event has confirmed
// the block, but this router has just sent the worker a prompt that will produce it.
enum class BlockTier : uint8_t { kDevice = 0, kDram = 1, kNvme = 2, kExpected = 3 };
inline constexpr size_t kBlockTiers = 4;

// The number of workers in an index is limited to this.
inline constexpr uint32_t kIndexWorkersMax = 8192;

// The blocks of one run that one worker has in one tier: bit i is the run's block i. A worker has
// each block in at most one tier.
struct RunHolding {
  uint64_t blocks = 0;
  uint16_t worker = 0;
  BlockTier tier = BlockTier::kDevice;
};

// A compressed path of the radix tree: up to 64 blocks, each the parent of the next, and which
// worker has which of them. Immutable once readers can see it; a change publishes a new run. One
// malloc holds the header, then the bitmap of each holding, then the worker and tier of each
// holding; holdings are sorted by worker and tier. Free with free().
class PrefixRun {
 public:
  // The caller owns `ids`, which must outlive the run.
  static PrefixRun* New(const BlockId* ids, uint32_t length, std::span<const RunHolding> holdings);

  const BlockId* ids() const { return ids_; }
  uint32_t length() const { return length_; }
  uint32_t holdings() const { return holdings_; }
  RunHolding holding(uint32_t i) const {
    const uint16_t key = keys()[i];
    return {blocks()[i], static_cast<uint16_t>(key >> 2), static_cast<BlockTier>(key & 3)};
  }
  bool Has(uint32_t offset, const BlockId& id) const {
    return offset < length_ && ids_[offset] == id;
  }

 private:
  PrefixRun(const BlockId* ids, uint32_t length, uint32_t holdings)
      : ids_(ids), length_(static_cast<uint16_t>(length)), holdings_(holdings) {}
  const uint64_t* blocks() const { return reinterpret_cast<const uint64_t*>(this + 1); }
  const uint16_t* keys() const { return reinterpret_cast<const uint16_t*>(blocks() + holdings_); }

  const BlockId* ids_;
  uint16_t length_;
  uint32_t holdings_;
};

inline uint64_t LowBits(uint32_t n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

}  // namespace penstock
