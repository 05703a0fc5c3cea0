#pragma once

#include <cstdint>
#include <vector>

#include "kernels/paged_kv.h"
#include "kvstore/wire/slab.h"

namespace penstock {

// A rectangle of a sequence's KV: layers [first_layer, last_layer) of blocks
// [first_block, last_block).
struct KvRange {
  uint32_t first_layer = 0;
  uint32_t last_layer = 0;
  uint32_t first_block = 0;
  uint32_t last_block = 0;

  uint32_t layers() const { return last_layer - first_layer; }
  uint32_t blocks() const { return last_block - first_block; }
  uint64_t cells() const { return uint64_t{layers()} * blocks(); }
  bool operator==(const KvRange&) const = default;
};

KvRange RangeOf(const SlabHeader& header);
uint64_t BytesOf(const KvLayout& layout, const KvRange& range);

// The parts of `range` that a sequence needs which goes on behind `tokens` tokens: those of layers
// with a window begin at the first block that its next token sees. Both sides of a handoff compute
// it, so the other parts are neither sent nor expected. In order of layers.
std::vector<KvRange> SentRanges(const KvLayout& layout, uint32_t tokens, const KvRange& range);

// The other parts of `range`.
std::vector<KvRange> UnsentRanges(const KvLayout& layout, uint32_t tokens, const KvRange& range);

// The set of (layer, block) cells of a sequence that are present. One thread at a time.
class HandoffCoverage {
 public:
  HandoffCoverage(uint32_t layers, uint32_t blocks);

  // True when `range` is not empty and lies within the sequence.
  bool Contains(const KvRange& range) const;
  // True when any cell of `range` is present. `range` must satisfy Contains.
  bool Overlaps(const KvRange& range) const;
  // Adds a contained range that does not overlap present cells.
  void Add(const KvRange& range);

  bool complete() const { return cells_ == uint64_t{layers_} * blocks_; }
  uint64_t cells() const { return cells_; }
  // The number of layers whose blocks are all present.
  uint32_t complete_layers() const;

 private:
  uint32_t layers_;
  uint32_t blocks_;
  uint64_t cells_ = 0;
  std::vector<bool> present_;  // [layer][block]
};

}  // namespace penstock
