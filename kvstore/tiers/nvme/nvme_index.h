#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "kvstore/cache/block_table.h"
#include "kvstore/tiers/nvme/segment_format.h"

namespace penstock {

// The location of each block: segment and page. The caller numbers the segments. Any thread; calls
// are serialised by a mutex.
class NvmeIndex {
 public:
  struct Entry {
    BlockRecord record;
    uint32_t segment = 0;
    bool used = false;  // read since it was written
  };

  NvmeIndex() : table_(records_) {}

  // False when the block is in the index already; its entry then stays unchanged.
  bool Insert(uint32_t segment, const BlockRecord& record) EXCLUDES(mutex_);
  // Changes the location of a block, which must be in the index.
  void Move(uint32_t segment, const BlockRecord& record) EXCLUDES(mutex_);
  std::optional<Entry> Find(const BlockId& id) const EXCLUDES(mutex_);
  bool Contains(const BlockId& id) const EXCLUDES(mutex_);
  // Marks the block as used.
  void Use(const BlockId& id) EXCLUDES(mutex_);
  bool Erase(const BlockId& id) EXCLUDES(mutex_);
  // All blocks located in `segment`.
  std::vector<Entry> InSegment(uint32_t segment) const EXCLUDES(mutex_);
  // Forgets the segment, which must have no blocks left.
  void Forget(uint32_t segment) EXCLUDES(mutex_);
  void Clear() EXCLUDES(mutex_);

  // The number of leading ids in the index. Their look-ups overlap.
  size_t CountLeading(std::span<const BlockId> ids) const EXCLUDES(mutex_);
  // For each of `ids`, true unless its block is partial (SpillBlock).
  std::vector<bool> Whole(std::span<const BlockId> ids) const EXCLUDES(mutex_);

  std::vector<BlockName> Names() const EXCLUDES(mutex_);
  size_t blocks() const EXCLUDES(mutex_);
  // Memory of the index, including the blocks' names.
  size_t memory_bytes() const EXCLUDES(mutex_);

 private:
  // A packed record. Slots are allocated in pieces that never move, so growth copies nothing.
  struct Slot {
    BlockName name;
    uint32_t segment;
    uint32_t page;
    uint32_t crc;
    uint32_t pages : 19;
    uint32_t partial : 1;
    uint32_t codec : 2;  // index into kCodecs
    uint32_t uses : 8;
    uint32_t used : 1;
    uint32_t alive : 1;
  };
  class Records {
   public:
    static constexpr uint32_t kPiece = 4096;
    const BlockId& id(uint32_t record) const { return (*this)[record].name.id; }
    Slot& operator[](uint32_t record) { return pieces_[record / kPiece][record % kPiece]; }
    const Slot& operator[](uint32_t record) const {
      return pieces_[record / kPiece][record % kPiece];
    }
    uint32_t Add();
    void Free(uint32_t record);
    void Clear();
    size_t memory_bytes() const;

   private:
    std::vector<std::vector<Slot>> pieces_;
    std::vector<uint32_t> free_;
    uint32_t next_ = 0;
  };

  static Entry Unpack(const Slot& slot);
  void Pack(uint32_t segment, const BlockRecord& record, uint32_t number) REQUIRES(mutex_);

  mutable Mutex mutex_;
  Records records_ GUARDED_BY(mutex_);
  BlockTable<Records> table_ GUARDED_BY(mutex_);
  // By segment; may list records that were erased since.
  std::vector<std::vector<uint32_t>> members_ GUARDED_BY(mutex_);
};

}  // namespace penstock
