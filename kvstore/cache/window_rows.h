#pragma once

#include <cstdint>
#include <list>
#include <vector>

namespace penstock {

// Decides which blocks have a row: memory for their KV of a window group's layers. A block gets a
// row when the first sequence holds it, and keeps the row when nobody holds it any more, so that
// look-ups find the KV. Such rows are idle, and are taken when no row is free: first those that a
// window has passed, the last of them first, because look-ups seldom end in the middle of a prompt;
// then the others, the longest idle first. Wanted rows are those at the end of a prefix that a
// look-up has found; they count with the others. Requests hold rows within quotas, which together
// are at most all rows, so a row can always be had.
//
// Pure bookkeeping, without memory and locks. One thread at a time.
class WindowRows {
 public:
  // With as many rows as blocks, each block can always have one, and quotas are not limited.
  WindowRows(int64_t blocks, int64_t rows);

  // True if the quotas have `rows` rows left. Reserve must follow a true answer.
  bool CanReserve(int64_t rows) const { return unlimited() || reserved_ + rows <= rows_; }
  void Reserve(int64_t rows) { reserved_ += rows; }
  void Return(int64_t rows) { reserved_ -= rows; }

  bool Has(uint32_t block) const { return row_[block] != no_row(); }
  uint32_t holders(uint32_t block) const { return holders_[block]; }
  // One more holder, who is within a quota. The block gets a row if it has none.
  void Hold(uint32_t block);
  // A row that nobody holds any more becomes idle. `passed`: a window has passed it.
  void Drop(uint32_t block, bool passed = false);
  // The row, which nobody holds, becomes free.
  void Forget(uint32_t block);
  // Marks the block's row as wanted, even if it has none now. Free ends it.
  void Want(uint32_t block) { wanted_[block] = true; }
  bool wanted(uint32_t block) const { return wanted_[block]; }
  // The block's KV is of no use any more.
  void Free(uint32_t block);

  int64_t total() const { return rows_; }
  int64_t reserved() const { return reserved_; }
  int64_t held() const { return rows_ - free() - idle(); }
  int64_t idle() const { return static_cast<int64_t>(idle_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  bool unlimited() const { return rows_ == static_cast<int64_t>(row_.size()); }
  uint32_t no_row() const { return static_cast<uint32_t>(rows_); }
  // By block. The address does not change.
  const uint32_t* rows() const { return row_.data(); }

 private:
  void TakeOffIdle(uint32_t block);

  const int64_t rows_;
  std::vector<uint32_t> row_;                             // by block
  std::vector<uint32_t> holders_;                         // by block
  std::vector<uint32_t> free_;                            // rows
  std::vector<bool> wanted_;                              // by block
  std::list<uint32_t> idle_;                              // blocks, in the order of being taken
  std::vector<std::list<uint32_t>::iterator> idle_at_{};  // by block, while it is idle
  int64_t reserved_ = 0;                                  // by quotas
};

}  // namespace penstock
