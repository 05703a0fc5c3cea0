#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kvstore/cache/block_pool.h"
#include "kvstore/names/block_hash.h"

namespace penstock {

// The tiers of the store, fastest first. Device pages are not part of the store.
enum class Tier : uint8_t { kDram, kNvme };

// A block and its predecessor in the prefix; for the first block, the root of its namespace.
struct BlockName {
  BlockId id;
  BlockId parent;
  bool operator==(const BlockName&) const = default;
};

// The fastest tier that serves a block from now on; nullopt: none. An event may be repeated.
struct BlockEvent {
  BlockName name;
  std::optional<Tier> tier;
};
// Called on the store's thread, in order and without locks. Must not block, and must not wait for
// the store.
using OnBlockEvent = std::function<void(const BlockEvent&)>;

struct FindResult {
  size_t blocks = 0;  // leading blocks that are served
  size_t dram = 0;    // part of `blocks`
  size_t nvme = 0;    // part of `blocks`
  // For each of `blocks`, true if its copy has the KV of all layers.
  std::vector<bool> whole = {};
};

struct RestoreResult {
  size_t whole = 0;  // leading blocks whose pages now hold verified KV
  // The given pages, in order. The reference of a page that a slow disk may still write into is
  // empty: that page goes back to its pool when the disk has ended.
  std::vector<BlockRef> pages;
};
// Called once, on the store's thread or by Stop. Must not block.
using OnRestored = std::function<void(RestoreResult)>;

struct SpillBlock {
  BlockName name;
  BlockRef page;  // no longer written to
  // Number of sequences that used the block, including the one that computed it. The NVMe tier
  // admits blocks with enough uses.
  uint32_t uses = 1;
  // The KV of the window group's layers is gone (WindowRows): the copy has zeros in its place.
  bool partial = false;
};

}  // namespace penstock
