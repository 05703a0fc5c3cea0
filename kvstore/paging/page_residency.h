#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/paged_kv.h"
#include "kvstore/paging/page_file.h"

namespace penstock {

// What of an arena in a file is in memory, and what may leave it. The unit is a layer of a block.
// Units leave in the order of a clock that counts (GCLOCK; Smith, ACM TODS 3(3), 1978): a use adds
// two to a unit's count, a pass of the clock's hand takes one off, and at none the unit leaves. So
// pages that each token reads stay, however many others are read once in between. The counts of
// bytes are estimates between two calls of Count for a block, because not all who use pages
// say so. Pure, except for time: Use, Expect and Take may be called by any thread at any time, the
// others by one thread.
class PageResidency {
 public:
  static constexpr uint8_t kMax = 8;  // passes that a unit stays at most

  PageResidency(const KvLayout& layout, int64_t blocks);

  // A unit is used. True if it was not in memory, so far as is known.
  bool Use(uint32_t block, int32_t layer);
  // A unit may be used soon. It stays for one pass if it was not in memory, which is what this
  // returns; else nothing changes.
  bool Expect(uint32_t block, int32_t layer);
  // All layers of a block are used, and the block's old bytes are not.
  void Take(uint32_t block);

  int64_t blocks() const { return blocks_; }
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }  // in memory
  bool HasAny(uint32_t block) const { return in_memory_[block].load() != 0; }

  // The bytes of a block and of a unit.
  ByteRange RangeOf(uint32_t block) const;
  ByteRange RangeOf(uint32_t block, int32_t layer) const;

  // What of the block is in memory: a flag for each of its system pages. Units that were told of
  // count whatever the flags say, because they may be read or written soon. Those of which nobody
  // told leave at the next pass.
  void Count(uint32_t block, std::span<const unsigned char> in_memory);
  // The hand passes the block: appends the ranges of its units that leave memory, in whole system
  // pages. Returns their bytes, which are counted no more.
  int64_t Pass(uint32_t block, std::vector<ByteRange>& leave);

 private:
  // The passes that a unit stays: none, or so many more for each use. What was just read does not
  // leave at the next pass, before it is used, and what each token reads gains more passes than
  // the hand makes for a token.
  static constexpr uint8_t kOut = 0, kExpected = 1, kUse = 2;
  // Some of the unit is in memory, though no call has said that it was read.
  static constexpr uint8_t kUntold = kMax + 1;
  static bool IsOut(uint8_t uses) { return uses == kOut || uses == kUntold; }

  std::atomic<uint8_t>& UsesOf(uint32_t block, int32_t layer) const {
    return uses_[static_cast<size_t>(block) * static_cast<size_t>(layout_.layers) +
                 static_cast<size_t>(layer)];
  }
  // True if a page of the block has bytes of a unit that was told of and has not left.
  bool IsTold(uint32_t block, size_t page) const;
  // The system pages of a unit, except those that it shares with a neighbour in memory.
  ByteRange PagesOf(uint32_t block, int32_t layer) const;
  void SetInMemory(uint32_t block, int64_t bytes);
  void AddBytes(uint32_t block, int64_t bytes);

  const KvLayout layout_;
  const int64_t blocks_;
  const std::unique_ptr<std::atomic<uint8_t>[]> uses_;       // [block][layer]
  const std::unique_ptr<std::atomic<int64_t>[]> in_memory_;  // bytes of each block
  std::atomic<int64_t> bytes_ = 0;
};

}  // namespace penstock
