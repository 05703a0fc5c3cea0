#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// Hears which pages of an arena are about to be used, where the arena is a file that is larger than
// the memory for it (kvstore/paging). Every byte of the arena can be read and written at any time:
// what a pager does decides only how long that takes. Any thread.
class KvPager {
 public:
  virtual ~KvPager() = default;

  // The limit of the pages that are in memory.
  virtual uint64_t memory_bytes() const = 0;

  // The block was taken from its pool: all of its layers will be written.
  virtual void OnTaken(uint32_t block) = 0;
  // A step, or a copy, will read or write one layer of these blocks. Does not wait. Returns those
  // of them that are not in memory, in their order.
  virtual std::vector<uint32_t> OnWanted(std::span<const uint32_t> blocks, int32_t layer) = 0;
  // The same of blocks that a step will probably want, before it is known.
  virtual std::vector<uint32_t> OnGuessed(std::span<const uint32_t> blocks, int32_t layer) = 0;
};

}  // namespace penstock
