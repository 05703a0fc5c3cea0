#include "kvstore/cache/window_rows.h"

#include "base/check.h"

namespace penstock {

WindowRows::WindowRows(int64_t blocks, int64_t rows)
    : rows_(rows),
      row_(static_cast<size_t>(blocks), static_cast<uint32_t>(rows)),
      holders_(static_cast<size_t>(blocks), 0),
      wanted_(static_cast<size_t>(blocks), false),
      idle_at_(static_cast<size_t>(blocks), idle_.end()) {
  PENSTOCK_CHECK_LE(rows, blocks);
  free_.reserve(static_cast<size_t>(rows));
  for (int64_t row = rows; row-- > 0;) free_.push_back(static_cast<uint32_t>(row));
}

void WindowRows::Hold(uint32_t block) {
  if (holders_[block]++ > 0) return;
  if (Has(block)) return TakeOffIdle(block);
  if (free_.empty()) {
    PENSTOCK_CHECK(!idle_.empty(), "sequences hold more rows than their quotas have");
    Forget(idle_.front());
  }
  row_[block] = free_.back();
  free_.pop_back();
}

void WindowRows::Drop(uint32_t block, bool passed) {
  PENSTOCK_CHECK_GT(holders_[block], 0u);
  if (--holders_[block] > 0) return;
  const bool first = passed && !wanted_[block];
  idle_at_[block] = idle_.insert(first ? idle_.begin() : idle_.end(), block);
}

void WindowRows::Free(uint32_t block) {
  Forget(block);
  wanted_[block] = false;
}

void WindowRows::Forget(uint32_t block) {
  PENSTOCK_CHECK_EQ(holders_[block], 0u);
  if (!Has(block)) return;
  TakeOffIdle(block);
  free_.push_back(row_[block]);
  row_[block] = no_row();
}

void WindowRows::TakeOffIdle(uint32_t block) {
  idle_.erase(idle_at_[block]);
  idle_at_[block] = idle_.end();
}

}  // namespace penstock
