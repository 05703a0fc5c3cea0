#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "kvstore/cache/block_table.h"
#include "kvstore/tiers/nvme/segment_format.h"

namespace penstock {

// Which block lies where in which segment. Segments are numbered by whoever keeps them. Any thread;
// one call at a time gets in.
class NvmeIndex {
 public:
  struct Entry {
    BlockRecord record;
    uint32_t segment = 0;
    bool used = false;  // served since it was written
  };

  NvmeIndex() : table_(records_) {}

  // False when the block is here already; it then stays where it is.
  bool Insert(uint32_t segment, const BlockRecord& record) EXCLUDES(mutex_);
  // The block, here already, lies somewhere else from now on.
  void Move(uint32_t segment, const BlockRecord& record) EXCLUDES(mutex_);
  std::optional<Entry> Find(const BlockId& id) const EXCLUDES(mutex_);
  bool Contains(const BlockId& id) const EXCLUDES(mutex_);
  // Notes that it was served.
  void Use(const BlockId& id) EXCLUDES(mutex_);
  bool Erase(const BlockId& id) EXCLUDES(mutex_);
  // All blocks that lie in `segment`.
  std::vector<Entry> InSegment(uint32_t segment) const EXCLUDES(mutex_);
  // None of them is left.
  void Forget(uint32_t segment) EXCLUDES(mutex_);
  void Clear() EXCLUDES(mutex_);

  // How many leading ids are here. Look-ups overlap.
  size_t CountLeading(std::span<const BlockId> ids) const EXCLUDES(mutex_);

  std::vector<BlockName> Names() const EXCLUDES(mutex_);
  size_t blocks() const EXCLUDES(mutex_);
  // Of the index, the names included.
  size_t memory_bytes() const EXCLUDES(mutex_);

 private:
  // As a record, but smaller, in pieces that do not move: growth copies nothing.
  struct Slot {
    BlockName name;
    uint32_t segment;
    uint32_t page;
    uint32_t crc;
    uint32_t pages : 20;
    uint32_t codec : 2;  // by its place in kCodecs
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
  std::vector<std::vector<uint32_t>> members_ GUARDED_BY(mutex_);  // by segment; some have left
};

}  // namespace penstock
