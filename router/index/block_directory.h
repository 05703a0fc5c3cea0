#pragma once

#include <atomic>
#include <cstdint>

#include "router/index/epoch.h"

namespace penstock {

// The position of a block in the radix tree: its run, and its offset within the run.
struct BlockPlace {
  static constexpr uint32_t kOffsetBits = 6;
  static constexpr uint32_t kRunMax = 1u << kOffsetBits;          // blocks in a run
  static constexpr uint32_t kRunsMax = 1u << (32 - kOffsetBits);  // runs; number 0 means none

  uint32_t run = 0;
  uint32_t offset = 0;

  uint32_t Packed() const { return run << kOffsetBits | offset; }
  static BlockPlace Unpack(uint32_t packed) {
    return {packed >> kOffsetBits, packed & (kRunMax - 1)};
  }
};

// A hash table from a 32-bit tag of a block id to the block's place: linear probing with
// tombstones, 8 bytes an entry. It stores no ids: the caller of Find compares the id at each
// candidate place. Lock-free readers: Find is for any thread that holds an EpochDomain::Guard.
// Insert and Erase need the caller's lock.
class BlockDirectory {
 public:
  explicit BlockDirectory(EpochDomain& epochs);
  ~BlockDirectory();
  BlockDirectory(const BlockDirectory&) = delete;
  BlockDirectory& operator=(const BlockDirectory&) = delete;

  // The place with this tag for which is_it(place) is true; run 0 when there is none.
  template <class IsIt>
  BlockPlace Find(uint32_t tag, const IsIt& is_it) const {
    const Table& table = *table_.load(std::memory_order_acquire);
    for (uint32_t i = table.HomeOf(tag);; i = i + 1 == table.capacity ? 0 : i + 1) {
      const uint64_t entry = table.slots()[i].load(std::memory_order_acquire);
      if (entry == kEmpty) return {};
      if (static_cast<uint32_t>(entry >> 32) != tag || entry == kGone) continue;
      const BlockPlace place = BlockPlace::Unpack(static_cast<uint32_t>(entry));
      if (is_it(place)) return place;
    }
  }
  // Prefetches the cache line in which Find will begin.
  void Prefetch(uint32_t tag) const {
    const Table& table = *table_.load(std::memory_order_acquire);
    __builtin_prefetch(&table.slots()[table.HomeOf(tag)]);
  }

  // `place` is not in the table; the caller has checked.
  void Insert(uint32_t tag, BlockPlace place);
  // `place` is in the table.
  void Erase(uint32_t tag, BlockPlace place);

  uint32_t size() const { return live_; }

 private:
  // The run of an entry's place is at least 1, so no entry has these values.
  static constexpr uint64_t kEmpty = 0;
  static constexpr uint64_t kGone = 1;

  struct Table {
    uint32_t capacity;
    std::atomic<uint64_t>* slots() { return reinterpret_cast<std::atomic<uint64_t>*>(this + 1); }
    const std::atomic<uint64_t>* slots() const {
      return reinterpret_cast<const std::atomic<uint64_t>*>(this + 1);
    }
    uint32_t HomeOf(uint32_t tag) const {
      return static_cast<uint32_t>(static_cast<uint64_t>(tag) * capacity >> 32);
    }
    uint64_t padding = 0;  // aligns the slots behind the header to 8 bytes
  };

  static Table* NewTable(uint32_t capacity);
  static void Put(Table& table, uint64_t entry);
  void Rebuild();

  EpochDomain& epochs_;
  std::atomic<Table*> table_;
  uint32_t live_ = 0;
  uint32_t used_ = 0;  // slots that are not empty: entries and tombstones
};

}  // namespace penstock
