#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kvstore/cache/block_pool.h"
#include "kvstore/names/block_hash.h"

namespace penstock {

// Where the store keeps a block; the better one first. Device pages are not the store's.
enum class Tier : uint8_t { kDram, kNvme };

// A block and the one before it in its prefix (the root of its namespace for the first).
struct BlockName {
  BlockId id;
  BlockId parent;
  bool operator==(const BlockName&) const = default;
};

// From where the store can serve a block from now on; nullopt: no longer. The same may be said
// twice.
struct BlockEvent {
  BlockName name;
  std::optional<Tier> tier;
};
// Called by the store's thread, in order, without locks held. Must not block, and must not wait for
// the store.
using OnBlockEvent = std::function<void(const BlockEvent&)>;

struct FindResult {
  size_t blocks = 0;  // leading ones that are served
  size_t dram = 0;    // of these
  size_t nvme = 0;
};

struct RestoreResult {
  size_t whole = 0;  // leading blocks whose pages now hold verified KV
  // Those that were given, in order. A page that a slow disk may still write into is not among them
  // (its reference is empty): it goes back to its pool when the disk has let go.
  std::vector<BlockRef> pages;
};
// Called once, by the store's thread or by Stop. Must not block.
using OnRestored = std::function<void(RestoreResult)>;

struct SpillBlock {
  BlockName name;
  BlockRef page;  // nobody writes into it any more
  // Sequences that have used the block, the one that computed it included. The NVMe tier admits
  // what was used often enough.
  uint32_t uses = 1;
};

}  // namespace penstock
