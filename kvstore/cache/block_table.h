#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "kvstore/names/block_hash.h"

namespace penstock {

// A hash table from block ids to record numbers (open addressing, linear probing). An entry takes 8
// bytes: the ids themselves are in the records. At most three quarters of the slots are used.
// `Records` provides `const BlockId& id(uint32_t record) const` and outlives the table. Batches of
// look-ups run in three passes (Prefetch, PrefetchRecord, Find) a few ids apart, so that the cache
// misses overlap. One writer or many readers at a time.
template <class Records>
class BlockTable {
 public:
  explicit BlockTable(const Records& records) : records_(records), slots_(kMin) {}

  size_t size() const { return size_; }
  size_t memory_bytes() const { return slots_.size() * sizeof(Slot); }

  std::optional<uint32_t> Find(const BlockId& id) const {
    const Hash hash = HashOf(id);
    for (size_t at = hash.place & mask(); slots_[at].used; at = (at + 1) & mask()) {
      if (slots_[at].tag == hash.tag && records_.id(slots_[at].record) == id) {
        return slots_[at].record;
      }
    }
    return std::nullopt;
  }

  void Prefetch(const BlockId& id) const { __builtin_prefetch(&slots_[HashOf(id).place & mask()]); }
  void PrefetchRecord(const BlockId& id) const {
    const Hash hash = HashOf(id);
    const Slot& slot = slots_[hash.place & mask()];
    if (slot.used && slot.tag == hash.tag) __builtin_prefetch(&records_.id(slot.record));
  }

  // `id` is the record's id and must not be in the table.
  void Insert(const BlockId& id, uint32_t record) {
    if ((size_ + 1) * 4 > slots_.size() * 3) Grow();
    Place(id, record);
    ++size_;
  }

  // `id` must be in the table.
  void Erase(const BlockId& id) {
    const Hash hash = HashOf(id);
    size_t hole = hash.place & mask();
    while (slots_[hole].tag != hash.tag || records_.id(slots_[hole].record) != id) {
      hole = (hole + 1) & mask();
    }
    // Backward-shift deletion (Knuth, TAOCP 6.4, Algorithm R): later entries of the probe sequence
    // move into the hole unless that would put them before their home slot.
    for (size_t at = (hole + 1) & mask(); slots_[at].used; at = (at + 1) & mask()) {
      const size_t home = HashOf(records_.id(slots_[at].record)).place & mask();
      if (((at - home) & mask()) < ((at - hole) & mask())) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = {};
    --size_;
  }

  void Clear() {
    slots_.assign(kMin, {});
    size_ = 0;
  }

 private:
  static constexpr size_t kMin = 64;
  struct Slot {
    uint32_t record = 0;
    uint32_t tag : 31 = 0;
    uint32_t used : 1 = 0;
  };
  struct Hash {
    size_t place;
    uint32_t tag;
  };

  // Ids are hashes already, so their bytes serve as hash and tag.
  static Hash HashOf(const BlockId& id) {
    uint64_t low;
    uint32_t high;
    std::memcpy(&low, id.bytes.data(), sizeof(low));
    std::memcpy(&high, id.bytes.data() + sizeof(low), sizeof(high));
    return {.place = low, .tag = high >> 1};
  }

  size_t mask() const { return slots_.size() - 1; }

  void Place(const BlockId& id, uint32_t record) {
    const Hash hash = HashOf(id);
    size_t at = hash.place & mask();
    while (slots_[at].used) at = (at + 1) & mask();
    slots_[at].record = record;
    slots_[at].tag = hash.tag;
    slots_[at].used = 1;
  }

  void Grow() {
    const std::vector<Slot> before = std::move(slots_);
    slots_.assign(before.size() * 2, {});
    for (const Slot& slot : before) {
      if (slot.used) Place(records_.id(slot.record), slot.record);
    }
  }

  const Records& records_;
  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace penstock
